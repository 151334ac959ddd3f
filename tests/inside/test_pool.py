"""How much of a pool is taken at the start, so that it is one region."""

import pytest

from sublet.inside import environment, pool
from sublet.inside.lease import MIB, Lease


@pytest.mark.parametrize(
    ("ceiling", "tight", "primed"),
    [
        (1024, False, 1022),
        (4096, True, 4094),
        (1200, False, 300),
        (4821, False, 512),
        (8192, True, 512),
        (3, False, None),
    ],
)
def test_a_pool_is_one_region_where_it_will_be_used_and_else_begins_with_a_part(
    monkeypatch: pytest.MonkeyPatch, ceiling: int, tight: bool, primed: int | None
) -> None:
    """Never with more than a quarter: what is left has to hold a large piece, too."""
    lease = Lease(1, 1, "t", "cpu", "cpu", None, ceiling * MIB, 64 << 30, "/nowhere", tight)
    monkeypatch.setenv(environment.USE_BFC, "1")
    monkeypatch.setenv(environment.BFC_LIMIT, str(ceiling))
    assert pool._primed_mib(lease) == primed
