"""A launcher in a process of its own, for the tests of keepers."""

from support.workshop import any_shop, shop

__all__ = ["any_shop", "shop"]
