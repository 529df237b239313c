"""Faults on purpose: the whole pipeline with a fault at a seeded random moment, and the same command again (``make faults``)."""
