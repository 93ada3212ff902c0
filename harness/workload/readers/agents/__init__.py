"""Traces of agents: calls of a session that wait for one another."""
