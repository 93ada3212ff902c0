"""Blocks of the device: who holds them, and which free one goes next."""
