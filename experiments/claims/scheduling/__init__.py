"""Claims about who runs when."""
