"""Whether this code is itself a call of a pool."""

import sys

from sublet.domain.job import POOL_PROGRAM


def in_a_worker() -> bool:
    """Whether this process is a pool's worker, or was forked from one.

    What would start a pool there for its own sake does its work itself instead: a worker that
    waits for another one holds its lease meanwhile, and enough of them wait for ever.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) == POOL_PROGRAM.decode()
