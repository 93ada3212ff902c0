"""Kernel-cost profiles: the files and the curves made of them."""
