"""A stage as a process: settings, paths, signals, exit codes and child processes, among them DVC."""
