"""What waits, in which order, and what it needs to enter: queues, needs, and limits on a step."""
