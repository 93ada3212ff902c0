"""Discrete-event simulation of the serving engine: the real scheduler, with step times from a cost model."""
