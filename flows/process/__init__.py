"""A stage as a process: its settings, paths and log, its signals and exit code, its child processes, and DVC as one of them."""
