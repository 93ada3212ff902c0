"""Claims about KV memory and the prefix cache."""
