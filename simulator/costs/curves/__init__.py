"""The tables of a profile as curves over the sizes of a step."""
