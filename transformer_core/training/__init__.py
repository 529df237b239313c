"""Training: loss, updates and their schedule, the loop, devices, states and checkpoints (paper 5 and 6.1)."""
