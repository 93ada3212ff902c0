"""Draws that follow from the request: the same request draws the same server, without a generator that has a state."""

from __future__ import annotations

import xxhash


def draw(number: int, count: int, seed: int = 0) -> int:
    """One of `count` servers for the request or session of this number, all as likely; by xxh64."""
    return xxhash.xxh64_intdigest(number.to_bytes(8, "little", signed=True), seed) % count


def rank(number: int, server: int) -> int:
    """How far up a server stands on the list of a session: with one server more or fewer, only the sessions that this
    one is first for move (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return xxhash.xxh64_intdigest(number.to_bytes(8, "little", signed=True), server)
