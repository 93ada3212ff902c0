"""The scheduling core that simulator and engine share: no torch, no clock, no I/O. Start at `scheduler.py`."""
