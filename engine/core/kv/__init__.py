"""KV memory: the pool of blocks, the index that finds cached prefixes, and the tiers that blocks move between."""
