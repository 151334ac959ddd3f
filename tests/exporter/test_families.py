"""What Prometheus reads, held against its own parser and its rules for names."""

import json
import re
from importlib import resources

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sublet.exporter.families import Process, exposition
from sublet.serving import metrics as serving
from sublet.serving.metrics import Activity, Row
from sublet.units import GiB
from sublet.wire.metrics import STATES, Counts, Metrics
from sublet.wire.rows import DeviceRow
from support.jobs import device

METRICS = Metrics(
    version="1.2",
    pid=1,
    began=5.0,
    devices=(
        DeviceRow(device("cpu", 4 * GiB), GiB, 0, 0, 3 * GiB),
        DeviceRow(device("gpu0", 8 * GiB), 0, 0, 0, 0, fault="fell off the bus"),
    ),
    jobs=dict.fromkeys(STATES, 2),
    nurseries={"warm": 1},
    longest_wait=0.5,
    counts=Counts.none(),
)
TEXT = exposition(METRICS, Process(1.5, GiB))
MODELS = [Row("a", 1, activity=Activity(latencies=[0, 1], computes=[0, 1], sizes=[1], rows=1))]
ALL = TEXT + serving.exposition(serving.Tally(), MODELS, {})
"""With what a server of models says."""


def families(text: str = TEXT) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(text)}


def test_prometheus_reads_it() -> None:
    found = families()
    assert found["sublet_build_info"].samples[0].labels == {"version": "1.2"}
    assert [one.value for one in found["sublet_device_usable"].samples] == [1.0, 0.0]
    assert found["sublet_device_leased_bytes"].samples[0].labels == {"device": "cpu"}
    assert found["sublet_lease_wait_seconds"].type == "histogram"
    assert found["sublet_jobs"].samples[0].value == 2.0


def test_names_follow_the_rules_of_prometheus() -> None:
    heads = re.findall(r"^# TYPE (\S+) (\S+)$", TEXT, re.MULTILINE)
    helps = re.findall(r"^# HELP (\S+) .+\.$", TEXT, re.MULTILINE)
    assert [name for name, _ in heads] == helps
    assert len(set(helps)) == len(helps)
    for name, kind in heads:
        assert re.fullmatch(r"sublet_[a-z_]+", name)
        assert name.endswith("_total") == (kind == "counter")
        assert not re.search(r"(?:_ms|_milliseconds|_mib|_kb|_minutes|_percent)(?:_|$)", name)


def test_labels_have_few_values_and_name_no_job() -> None:
    values: dict[str, set[str]] = {}
    for family in families().values():
        for one in family.samples:
            for label, value in one.labels.items():
                values.setdefault(label, set()).add(value)
    assert set(values) == {"version", "device", "state", "outcome", "start", "direction", "le"}
    assert all(len(known) <= 12 for known in values.values())


def test_without_a_broker_that_is_all_it_says() -> None:
    found = families(exposition(None))
    assert set(found) == {"sublet_build_info", "sublet_broker_up"}
    assert found["sublet_broker_up"].samples[0].value == 0.0


def test_every_metric_of_the_dashboard_is_there() -> None:
    document = (resources.files("sublet.exporter") / "dashboard.json").read_text()
    board = json.loads(document)
    samples = {one.name for family in families(ALL).values() for one in family.samples}
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [
        one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"
    ]
    assert len(asked) > 15
    for expression in asked:
        named = re.findall(r"sublet_\w+", expression)
        assert named, expression
        assert set(named) <= samples, expression
        labels = set(re.findall(r"(\w+)[!=]~?=?\"", expression))
        for words in re.findall(r"by \(([\w, ]+)\)", expression):
            labels |= set(words.split(", "))
        known = {label for name in named for label in _labels(name)}
        assert labels <= known, expression
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def _labels(name: str) -> set[str]:
    found = (one for family in families(ALL).values() for one in family.samples)
    return {label for one in found if one.name == name for label in one.labels}
