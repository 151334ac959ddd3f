"""A script as a function in a worker of a pool."""

import runpy
import sys

import sublet


def run(path: str) -> None:
    """Run a script as `python` would, as far as that can be had within a function."""
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    with sublet.Pool(1) as pool:
        pool.submit(run, sys.argv[1]).result()
