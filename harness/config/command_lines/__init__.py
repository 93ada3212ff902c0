"""Command lines of other tools, read as a configuration and written from one."""
