"""Pure plans: no I/O, no clock; the same snapshot gives the same plan."""
