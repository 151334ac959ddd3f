"""Tools beside the product: they measure it and simulate it."""
