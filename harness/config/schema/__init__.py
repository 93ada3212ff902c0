"""The schema of a configuration: one file per group."""
