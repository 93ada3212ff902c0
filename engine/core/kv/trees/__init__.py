"""Prefix caches that are trees: those of SGLang and of TensorRT-LLM."""
