"""How each kind of layer is computed for all models of a stack at once."""
