"""Simulated runs against measured ones."""
