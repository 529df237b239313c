"""Loss, schedule, devices, trainer, checkpoints and averaging (paper section 5 and 6.1)."""
