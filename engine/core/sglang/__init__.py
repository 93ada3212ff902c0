"""The scheduler of SGLang 0.5.23: its queue, its running batch, and how prompts and decodes make up its steps."""
