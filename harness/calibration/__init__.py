"""Fits constants of a cost model to measured runs."""
