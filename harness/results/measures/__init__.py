"""What is computed from the tables of a run, for its summary."""
