"""What is counted, and how it reads."""

from prometheus_client.parser import text_string_to_metric_families

from sublet.channel.codes import Code
from sublet.serving.metrics import Activity, Row, Tally, add, exposition


def test_prometheus_reads_it() -> None:
    tally = Tally()
    tally.request("a", "Predict", "REST", Code.OK, 0.001)
    tally.batch("a", "Predict", 0.001, 0.001)
    text = exposition(tally, [Row("a", 1, bytes=1)], {"engine": 0})
    families = {one.name: one for one in text_string_to_metric_families(text)}
    latency = families[":tensorflow:serving:request_latency"]
    assert latency.type == "histogram"
    assert len(latency.samples) == 33 + 1 + 2
    assert families["sublet_model_memory_bytes"].samples[0].value == 1


def values(text: str) -> dict[str, float]:
    """Each sample of an exposition."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_requests_are_counted_by_model_and_status() -> None:
    tally = Tally()
    tally.request("a", "Predict", "REST", Code.OK, 0.001)
    tally.request("a", "Predict", "REST", Code.OK, 0.002)
    tally.request("a", "Predict", "gRPC", Code.INVALID_ARGUMENT, 0.001)
    found = values(exposition(tally, [], {}))
    name = ":tensorflow:serving:request_count"
    assert found[name + '{model_name="a",status="OK"}'] == 2
    assert found[name + '{model_name="a",status="INVALID_ARGUMENT"}'] == 1


def test_latencies_are_microseconds_in_the_buckets_of_tensorflow_serving() -> None:
    tally = Tally()
    tally.request("a", "Predict", "REST", Code.OK, 0.0001)
    text = exposition(tally, [], {})
    found = values(text)
    labels = 'model_name="a",API="predict",entrypoint="REST"'
    name = ":tensorflow:serving:request_latency"
    assert f"# TYPE {name} histogram" in text
    assert found[f'{name}_bucket{{{labels},le="58.32"}}'] == 0
    assert found[f'{name}_bucket{{{labels},le="104.976"}}'] == 1
    assert found[f'{name}_bucket{{{labels},le="708235"}}'] == 1
    assert found[f'{name}_bucket{{{labels},le="+Inf"}}'] == 1
    assert found[f"{name}_sum{{{labels}}}"] == 100
    assert found[f"{name}_count{{{labels}}}"] == 1


def test_where_the_time_of_an_answer_went_is_counted() -> None:
    tally = Tally()
    tally.batch("a", "Predict", queued=0.002, computed=0.004)
    found = values(exposition(tally, [], {}))
    serving = ":tensorflow:serving:"
    assert (
        found[serving + 'runtime_latency_sum{model_name="a",API="Predict",runtime="TF2"}'] == 4000
    )
    assert found[serving + 'batching_session:queuing_latency_sum{thread_pool_name="a"}'] == 2000


def test_the_tallies_of_several_front_ends_add_up() -> None:
    one, other = Tally(), Tally()
    for tally, times in ((one, 2), (other, 3)):
        for _ in range(times):
            tally.request("a", "Predict", "GRPC", Code.OK, 0.001)
            tally.batch("a", "Predict", 0.001, 0.001)
    found = values(exposition(add([one, other]), [], {}))
    assert found[':tensorflow:serving:request_count{model_name="a",status="OK"}'] == 5
    labels = 'model_name="a",API="Predict",entrypoint="GRPC"'
    assert found[f":tensorflow:serving:request_latency_count{{{labels}}}"] == 5
    assert one.requests == {("a", 0): 2}


def test_the_models_of_the_engines_are_told() -> None:
    rows = [Row("a", 3, bytes=1024, load_seconds=0.5, loads=2, evictions=1)]
    found = values(exposition(Tally(), rows, {"engine": 1}))
    assert found['sublet_model_memory_bytes{model_name="a",version="3"}'] == 1024
    assert found['sublet_model_evictions_total{model_name="a",version="3"}'] == 1
    assert found['sublet_restarts_total{process="engine"}'] == 1


def test_names_cannot_break_out_of_their_quotes() -> None:
    tally = Tally()
    tally.request('x"} 1\n\\', "Predict", "REST", Code.NOT_FOUND, 0.0)
    text = exposition(tally, [], {})
    assert (
        ':tensorflow:serving:request_count{model_name="x\\"} 1\\n\\\\",status="NOT_FOUND"} 1'
        in text
    )


def test_histograms_of_engines_have_few_buckets_and_lose_nothing() -> None:
    activity = Activity(
        latencies=[0] * 11 + [4, 1], computes=[0, 0, 2], sizes=[1, 0, 1],
        answered=0.01, computed=0.00001, rows=5,
    )  # fmt: skip
    text = exposition(Tally(), [Row("a", 1, device="cpu", waiting=7, activity=activity)], {})
    found = values(text)
    of = 'model_name="a",version="1",device="cpu"'
    assert found[f"sublet_model_queue_rows{{{of}}}"] == 7
    assert found[f"sublet_model_request_seconds_count{{{of}}}"] == 5
    assert found[f"sublet_model_request_seconds_sum{{{of}}}"] == 0.01
    assert found[f'sublet_model_request_seconds_bucket{{{of},le="0.001024"}}'] == 0
    assert found[f'sublet_model_request_seconds_bucket{{{of},le="0.004096"}}'] == 5
    assert found[f'sublet_model_batch_rows_bucket{{{of},le="1"}}'] == 1
    assert found[f'sublet_model_batch_rows_bucket{{{of},le="4"}}'] == 2
    assert text.count("_bucket{") == 2 * 13 + 12
