"""A launcher in a process of its own, for the tests of keepers."""

from support.launcher_harness import any_launcher, launcher

__all__ = ["any_launcher", "launcher"]
