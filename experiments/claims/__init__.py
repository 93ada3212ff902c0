"""Well-known claims about LLM serving, each put to the test in the simulator and in the real engine."""
