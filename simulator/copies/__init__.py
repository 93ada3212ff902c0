"""What is copied between the tiers of memory, and the time that it takes."""
