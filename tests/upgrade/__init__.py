"""Files of an earlier version, which today's code must read: see `tests/upgrade/make.py`."""
