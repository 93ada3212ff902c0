"""Triton kernels, each beside its PyTorch reference, and the attention backends built on them."""
