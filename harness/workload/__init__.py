"""What is asked of the engine: traces, arrivals, contents."""
