"""The scheduling core (no torch): sequences, the paged KV block manager and the scheduler."""
