"""One run: the system is built from the configuration, serves a trace and is recorded."""
