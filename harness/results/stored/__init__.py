"""A result folder: its files, its lock, and what is stored beside the tables."""
