"""Leases for tests."""

from support.leased import on_cpu, on_gpu

__all__ = ["on_cpu", "on_gpu"]
