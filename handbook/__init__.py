"""The documentation as a site with a search, which needs no network: `make docs`."""
