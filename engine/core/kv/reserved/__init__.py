"""What a sequence holds from its admission to its end: a range of blocks, as before paging, or blocks for its state."""
