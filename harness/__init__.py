"""Traces, arrivals, replay, metrics, result tables, plots and reports."""
