"""What clients and the broker say to each other."""

PROTOCOL = 3
"""Changed when an older client or broker could misunderstand."""
