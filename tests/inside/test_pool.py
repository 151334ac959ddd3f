"""How much of a pool is taken at the start, so that it is one region."""

import pytest

from sublet.inside import environment, pool
from sublet.inside.lease import MIB, Lease


@pytest.mark.parametrize(
    ("ceiling", "roomy", "primed"),
    [
        (1024, False, 32),
        (1024, True, 1022),
        (4096, True, 4094),
        (8192, False, 256),
        (8192, True, 256),
        (64, False, 2),
        (3, False, None),
    ],
)
def test_a_pool_begins_with_a_part_and_is_one_region_where_nothing_is_wasted_by_that(
    monkeypatch: pytest.MonkeyPatch, ceiling: int, roomy: bool, primed: int | None
) -> None:
    lease = Lease(1, 1, "t", "cpu", "cpu", None, ceiling * MIB, 64 << 30, "/nowhere", roomy)
    monkeypatch.setenv(environment.USE_BFC, "1")
    monkeypatch.setenv(environment.BFC_LIMIT, str(ceiling))
    assert pool._primed_mib(lease) == primed
