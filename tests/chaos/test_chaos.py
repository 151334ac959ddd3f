"""Whatever is killed, stopped or full under a mixed load: the promises hold."""

import pytest

from chaos.storm import Storm


@pytest.mark.slow
def test_a_mixed_load_under_a_fault_each_second_breaks_no_promise() -> None:
    storm = Storm(seed=1)
    try:
        broken = storm.run(seconds=20.0)
    finally:
        kept = storm.close()
    assert not broken, f"seed {storm.seed}, kept in {kept}:\n" + "\n".join(broken)
