"""The scheduling core, and the real engine around it."""
