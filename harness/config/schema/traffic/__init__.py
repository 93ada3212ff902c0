"""The schema of what is served: traces, their files and lengths, and arrivals."""
