"""Kernel-cost profiles: their tables, their files, and what they can be used for."""
