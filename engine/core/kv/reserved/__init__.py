"""The allocators before paging: a range of consecutive blocks for each sequence."""
