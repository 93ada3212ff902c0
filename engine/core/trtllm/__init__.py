"""The scheduler of TensorRT-LLM: who fits into the memory, and how many tokens of each prompt a step computes."""
