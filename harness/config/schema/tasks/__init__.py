"""The keys that only some tasks read, and what each task needs."""
