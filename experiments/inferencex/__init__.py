"""Rows of InferenceX and of NVIDIA: points of the board, and what was fitted to some of them."""
