"""Fits constants of a cost model to measured runs, and to a server that it drives."""
