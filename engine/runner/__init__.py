"""Execution of plans on a device: step inputs, decode rows, CUDA graphs, KV cache, executors, ranks."""
