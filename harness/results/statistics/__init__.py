"""Latencies of a run: means, percentiles, and how sure they are."""
