"""The KV cache of a rank: its memory, its scales, and copies of its blocks."""
