"""What compares many runs: their tables and figures."""
