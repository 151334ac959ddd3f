"""`sublet metrics` with a real broker."""

import json
import re
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from support.queue import ended, shell
from support.sandbox import Sandbox


def values(text: str) -> dict[str, float]:
    """Each sample, by its name and labels."""
    return {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_they_are_printed_and_served_and_no_broker_is_started_for_them(
    new_sandbox: Callable[..., Sandbox],
) -> None:
    sandbox = new_sandbox(SUBLET_CPU_MEMORY="1GiB", SUBLET_LOG="json")
    server = sandbox.start("metrics", "--listen", "127.0.0.1:0")
    try:
        assert server.stderr is not None
        found = re.search(r"http://127.0.0.1:\d+/metrics", server.stderr.readline())
        assert found is not None

        def scrape() -> dict[str, float]:
            with urllib.request.urlopen(found[0], timeout=60) as answer:
                return values(answer.read().decode())

        assert scrape()["sublet_broker_up[]"] == 0
        assert not (sandbox.home / "broker.sock").exists()
        ended(sandbox, shell(sandbox, "exit 3"))
        first = scrape()
        assert first["sublet_broker_up[]"] == 1
        assert first["sublet_jobs_finished_total[('outcome', 'failed')]"] == 1
        ended(sandbox, shell(sandbox, "true"))
        second = values(sandbox.sublet("metrics", check=True).stdout)
        assert second["sublet_jobs_finished_total[('outcome', 'done')]"] == 1
        counted = [name for name in first if re.search(r"(?:_total|_bucket|_sum|_count)\[", name)]
        assert all(second[name] >= first[name] for name in counted)
        _check_log(sandbox)
    finally:
        server.terminate()
        assert server.wait(60) == 0
        server.communicate()


def _check_log(sandbox: Sandbox) -> None:
    """Each line is an object, and has what became of the jobs."""
    lines = [json.loads(line) for line in (sandbox.home / "broker.log").read_text().splitlines()]
    assert lines[0]["event"] == "broker started"
    first = [one for one in lines if one.get("job") == 1]
    assert [one["event"] for one in first] == ["submitted", "granted", "started", "ended"]
    assert first[1]["lease_bytes"] == 64 << 20
    assert (first[3]["outcome"], first[3]["exit"]) == ("failed", 3)
