"""Servers behind a gateway: who gets a request, who comes and goes, and what is handed over."""
