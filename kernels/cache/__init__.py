"""The kernels that write the KV cache."""
