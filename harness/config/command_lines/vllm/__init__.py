"""The command line of vLLM, both ways."""
