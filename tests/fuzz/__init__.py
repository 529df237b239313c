"""Damaged and hostile files for every reader: a reader returns, or raises a `UserError`. The slow tests have more inputs."""
