"""How a task of a cluster is asked for its Python stacks: a signal that nobody else uses."""

VARIABLE = "SUBLET_STACK_SIGNAL"
"""Names the signal to the program's interpreter."""
SIGNAL = 43
"""One of the real-time signals, which the kernel gives no meaning."""
