"""Chunked prefill: all decodes, then chunks of prompts in what the token budget leaves."""

from __future__ import annotations

from engine.core.planning.policy import BasePolicy


class Mixed(BasePolicy):
    """The steps of `BasePolicy`, with the order and the victims of the configuration."""


POLICY = Mixed
