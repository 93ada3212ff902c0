"""A run against a server that speaks OpenAI's API: what its clients see, and what it tells of itself in /metrics."""
