"""Blocks that nobody holds: in what order they go, and what they leave in the queue."""
