"""How much of a pool is taken at the start, so that it is one region."""

import pytest

from sublet.formats import lease_environment
from sublet.formats.lease import MIB, LeaseTerms
from sublet.inside import allocator


@pytest.mark.parametrize(
    ("ceiling", "roomy", "small", "one_piece"),
    [
        (64, False, 4, True),
        (160, False, 8, True),
        (1024, False, 64, True),
        (1500, False, 64, False),
        (1500, True, 64, True),
        (8192, False, 256, False),
        (8192, True, 256, False),
        (7, False, 0, False),
    ],
)
def test_a_pool_has_a_small_region_and_a_large_one_where_that_costs_little(
    monkeypatch: pytest.MonkeyPatch, ceiling: int, roomy: bool, small: int, one_piece: bool
) -> None:
    lease = LeaseTerms(1, 1, "t", "cpu", "cpu", None, ceiling * MIB, 64 << 30, "/nowhere", roomy)
    monkeypatch.setenv(lease_environment.USE_BFC, "1")
    monkeypatch.setenv(lease_environment.BFC_LIMIT, str(ceiling))
    assert allocator._small_mib(lease) == small
    assert allocator.is_one_piece(lease) is one_piece
