"""The endpoint and the dashboard under a real Prometheus, where one is installed."""

import json
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from exporter.test_families import ALL
from sublet.exporter.server import MetricsServer
from support.sandbox import wait_for

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus here"),
]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where a Prometheus answers that scrapes our endpoint."""
    scraped = MetricsServer("127.0.0.1", 0, lambda: ALL)
    threading.Thread(target=scraped.serve_forever, daemon=True).start()
    with MetricsServer("127.0.0.1", 0, lambda: "") as free:
        port = free.server_address[1]
    target = {"targets": [f"127.0.0.1:{scraped.server_address[1]}"]}
    jobs = [{"job_name": "sublet", "scrape_interval": "1s", "static_configs": [target]}]
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": jobs}))
    command = [
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.terminate()
        process.wait()
        scraped.shutdown()
        scraped.server_close()


def ask(address: str, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{address}/query?{query}", timeout=60) as answer:
        found: list[Any] = json.load(answer)["data"]["result"]
        return found


def test_every_query_of_the_dashboard_has_an_answer(address: str) -> None:
    def scraped_twice() -> bool:
        try:
            return bool(ask(address, "count_over_time(sublet_build_info[1m]) > 2"))
        except OSError:
            return False

    wait_for(scraped_twice, "Prometheus has read our endpoint")
    board = json.loads((resources.files("sublet.exporter") / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$device", ".*")
            assert ask(address, expression), expression
