"""A stage as a process: settings, paths, signals and exit code, child processes, and DVC as one of them."""
