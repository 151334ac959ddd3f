"""How much of a pool is taken at the start, so that it is one region."""

import pytest

from sublet.formats import lease_environment
from sublet.formats.lease import MIB, LeaseTerms
from sublet.inside import allocator


@pytest.mark.parametrize(
    ("ceiling", "roomy", "primed"),
    [
        (64, False, [3, 56]),
        (160, False, [7, 148]),
        (1024, False, [63, 956]),
        (1500, False, [63]),
        (1500, True, [63, 1432]),
        (8192, False, [255]),
        (8192, True, [255]),
        (7, False, []),
    ],
)
def test_a_pool_has_a_small_region_and_a_large_one_where_that_costs_little(
    monkeypatch: pytest.MonkeyPatch, ceiling: int, roomy: bool, primed: list[int]
) -> None:
    lease = LeaseTerms(1, 1, "t", "cpu", "cpu", None, ceiling * MIB, 64 << 30, "/nowhere", roomy)
    monkeypatch.setenv(lease_environment.USE_BFC, "1")
    monkeypatch.setenv(lease_environment.BFC_LIMIT, str(ceiling))
    assert allocator._primed_mib(lease) == primed
