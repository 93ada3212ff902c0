"""Traces of the project's own form: files, tables in memory, and what a function of the user's own returns."""
