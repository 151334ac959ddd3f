"""The broker's metrics for Prometheus, from a process of their own: the broker speaks no HTTP."""
