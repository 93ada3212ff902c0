"""Profiles compiled from the operator times that NVIDIA publishes with aiconfigurator."""

from simulator.importers.aiconfigurator.compile import compile_profile

__all__ = ["compile_profile"]
