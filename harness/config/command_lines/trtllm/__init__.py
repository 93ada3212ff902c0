"""Command lines of TensorRT-LLM."""
