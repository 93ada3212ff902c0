"""The board: how far off simulations of every public measurement are."""
