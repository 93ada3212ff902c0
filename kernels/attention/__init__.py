"""Attention on the paged KV cache: kernels, backends, and the choice of one."""
