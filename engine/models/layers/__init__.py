"""The layers that the model families are put together from."""
