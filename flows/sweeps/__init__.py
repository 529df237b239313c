"""Sweeps: rows of settings, a workspace for each training of a row, and the table of the results."""
