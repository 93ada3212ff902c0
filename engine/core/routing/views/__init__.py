"""What the sender of requests knows of its servers."""
