"""The admitted sequences: their states, their progress, and who gives way."""
