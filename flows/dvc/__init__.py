"""What touches DVC: its commands, the settings of one run, and the workspaces of runs with settings of their own."""
