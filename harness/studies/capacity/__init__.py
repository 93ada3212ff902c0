"""How much load a configuration bears."""
