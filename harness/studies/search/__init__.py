"""Which configuration of a large space is best."""
