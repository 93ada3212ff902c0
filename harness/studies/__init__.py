"""One run, and many runs with a question."""
