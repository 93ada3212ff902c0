"""What `tests.fuzz_config` is made of: cases, the processes that run them, and what must hold of each outcome."""
