"""The store, with TensorFlow and a pool of 64 MiB in which six models of 8 MiB fit."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.channel.codes import Code
from sublet.engine import compute_threads
from sublet.engine.model_store import ModelStore
from sublet.errors import ServingError
from support import exports
from support.leased import SAVED_MODELS, Leased, room
from support.sandbox import wait_for

HALF, THREE = "saved_model_half_plus_two_cpu", "saved_model_half_plus_three"
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def child(real_processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leased]:
    child = Leased(tmp_path_factory.mktemp("records"), 64)
    yield child
    child.close()


@pytest.fixture(scope="module")
def heavy(child: Leased, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of 8 MiB."""
    return str(child.run(exports.weights, tmp_path_factory.mktemp("heavy") / "1", 8))


@pytest.fixture
def run(child: Leased) -> Iterator[Run]:
    """Run a function in the child; its first argument is a store, new for each test."""

    def begin() -> None:
        room["events"], room["busy"], room["now"] = [], set(), 1000.0
        room["store"] = ModelStore(
            busy=lambda name, version: name in room["busy"],
            on_event=lambda *event: room["events"].append(event),
            clock=lambda: float(room["now"]),
        )

    def call(function: Run, *args: Any) -> Any:
        return child.run(lambda: function(room["store"], *args))

    child.run(begin)
    yield call
    if child.process.poll() is None:
        child.run(lambda: room["store"].close())


def known(store: ModelStore, *names: str) -> None:
    for name in names:
        store.add(name, 123, str(SAVED_MODELS / name / "00000123"))


def answer(store: ModelStore, name: str, signature: str = "serving_default", **inputs: Any) -> Any:
    loaded = store.use(name, 123) or store.load(name, 123)
    return loaded.signatures[signature].call(inputs)


def held_by_models(store: ModelStore) -> int:
    """Bytes of those that are in memory, or on their way there."""
    return sum(one.bytes for one in store._residents._all())


def ready(store: ModelStore) -> list[str]:
    return [one["model"] for one in store.statistics() if one["state"] == "ready"]


def test_models_of_both_formats_answer(run: Run) -> None:
    def ask(store: ModelStore) -> Any:
        known(store, HALF, THREE, "saved_model_half_plus_two_tf2_cpu")
        x = np.array([[1], [2], [5]], np.float32)
        return (
            answer(store, HALF, x=x)["y"].tolist(),
            answer(store, THREE, x=x)["y"].tolist(),
            answer(store, "saved_model_half_plus_two_tf2_cpu", x=x[0])["y"].tolist(),
        )

    assert run(ask) == ([[2.5], [3.0], [4.5]], [[3.5], [4.0], [5.5]], [2.5])


@pytest.fixture
def one_thread(run: Run) -> Iterator[None]:
    """Small models get one thread, as in an engine with a batch for each processor."""
    assert run(lambda _: compute_threads.begin(os.cpu_count() or 1))
    yield
    assert not run(lambda _: compute_threads.begin(0))


@pytest.mark.usefixtures("one_thread")
def test_all_that_creates_devices_takes_the_lock_of_the_switch(run: Run) -> None:
    def create(store: ModelStore) -> int:
        import tensorflow as tf

        taken = []

        class Lock:
            def __enter__(self) -> None:
                taken.append(1)

            def __exit__(self, *_: object) -> None:
                pass

        lock, compute_threads._creating_devices = compute_threads._creating_devices, Lock()  # type: ignore[assignment]
        try:
            for one in (True, False):
                compute_threads.session(tf.Graph(), one).close()
            compute_threads.start_eager()
        finally:
            compute_threads._creating_devices = lock
        return len(taken)

    assert run(create) == 3


def test_a_small_model_is_quick_and_one_with_large_variables_state_or_loops_is_not(
    run: Run, one_thread: None, heavy: str, tmp_path: Path
) -> None:
    counting, looping = tmp_path / "counting" / "1", tmp_path / "looping" / "1"

    def ask(store: ModelStore) -> Any:
        exports.counting(counting)
        exports.looping(looping)
        known(store, HALF)
        for name, path in (("heavy", heavy), ("counting", counting), ("looping", looping)):
            store.add(name, 123, str(path))
        x = np.array([[4]], np.float32)
        found = {
            name: store.load(name, 123).signatures["serving_default"].quick
            for name in (HALF, "heavy", "counting", "looping")
        }
        return found, answer(store, HALF, x=x)["y"].item(), answer(store, "looping", x=x)["y"]

    found, half, looped = run(ask)
    assert found == {HALF: True, "heavy": False, "counting": False, "looping": False}
    assert half == 4.0
    assert looped.tolist() == [[128.0]]


def test_the_operations_of_a_small_model_stay_in_the_thread_that_calls(
    run: Run, one_thread: None, tmp_path: Path
) -> None:
    place, calls = tmp_path / "1", 200

    def wakings() -> int:
        """How often threads but this one went to sleep."""
        total = 0
        for task in Path("/proc/self/task").iterdir():
            if int(task.name) != threading.get_native_id():
                lines = (task / "status").read_text().splitlines()
                total += next(int(one.split()[1]) for one in lines if one.startswith("voluntary"))
        return total

    def ask(store: ModelStore) -> tuple[bool, int]:
        exports.dense(place, 512)
        store.add("dense", 123, str(place))
        bound = store.load("dense", 123).signatures["serving_default"]
        before = wakings()
        for _ in range(calls):
            # So many rows that TensorFlow would split the product, if it could.
            bound.call({"x": np.ones((64, 512), np.float32)})
        return bound.quick, wakings() - before

    quick, woken = run(ask)
    assert quick
    assert woken < calls // 2


def test_every_signature_is_described_and_examples_are_parsed(run: Run) -> None:
    def ask(store: ModelStore) -> Any:
        import tensorflow as tf

        known(store, HALF)
        value = tf.train.Feature(float_list=tf.train.FloatList(value=[2.0]))
        example = tf.train.Example(features=tf.train.Features(feature={"x": value}))
        inputs = np.array([example.SerializeToString()], object)
        result = answer(store, HALF, "regress_x_to_y", inputs=inputs)
        signatures = store.load(HALF, 123).signatures
        return result["outputs"].tolist(), {
            k: (v.batchable, v.method) for k, v in signatures.items()
        }

    result, signatures = run(ask)
    assert result == [[3.0]]
    assert signatures["regress_x_to_y"] == (True, "tensorflow/serving/regress")
    assert len(signatures) == 5


def test_state_lives_as_long_as_the_model_is_in_memory(run: Run) -> None:
    def count(store: ModelStore) -> Any:
        known(store, "saved_model_counter")

        def ask(name: str, **inputs: Any) -> float:
            return float(answer(store, "saved_model_counter", name, **inputs)["output"])

        first = [ask("incr_counter"), ask("incr_counter"), ask("get_counter")]
        first.append(ask("incr_counter_by", delta=np.float32(5)))
        bound = store.load("saved_model_counter", 123).signatures["get_counter"]
        store.unload("saved_model_counter", 123)
        return first, bound.stateful, bound.batchable, ask("get_counter")

    assert run(count) == ([1.0, 2.0, 2.0, 7.0], True, False, 0.0)


def test_a_model_keeps_a_copy_of_what_it_keeps(run: Run, tmp_path: Path) -> None:
    def keep(store: ModelStore, place: Path) -> Any:
        store.add("sum", 123, exports.counting(place))
        memory = np.zeros(128, np.float32)
        begin = -memory.ctypes.data % 64 // 4
        aligned = memory[begin : begin + 64]
        aligned[:] = 1
        answer(store, "sum", x=aligned)
        aligned[:] = 7
        return answer(store, "sum", x=np.zeros(64, np.float32))["total"].max()

    assert run(keep, tmp_path / "sum") == 1


def test_models_with_tables_of_the_same_name_do_not_meet(run: Run, tmp_path: Path) -> None:
    def look_up(store: ModelStore, place: Path) -> Any:
        store.add("up", 123, exports.table(place / "up", ["a", "b", "c"]))
        store.add("down", 123, exports.table(place / "down", ["c", "b", "a"]))
        word = np.array([b"a", b"b", b"?"], object)
        return [answer(store, name, word=word)["number"].tolist() for name in ("up", "down", "up")]

    assert run(look_up, tmp_path) == [[0, 1, -1], [2, 1, -1], [0, 1, -1]]


def test_aligned_inputs_are_not_copied(run: Run, heavy: str) -> None:
    def measure(store: ModelStore, path: str) -> Any:
        store.add("heavy", 123, path)
        answer(store, "heavy", x=np.ones((1, 2), np.float32))
        memory = np.ones((16 << 20) + 64, np.uint8)
        begin = -memory.ctypes.data % 64
        x = memory[begin : begin + (16 << 20)].view(np.float32).reshape(-1, 2)
        store.sweep()
        answer(store, "heavy", x=x)
        peak = store._meter.take_peak()
        assert peak is not None
        return peak

    # The weights and the output are in the pool; the input is where it was.
    assert run(measure, heavy) < (8 + 16 + 8) << 20


def test_an_input_larger_than_the_pool_is_no_concern_of_the_pool(run: Run, tmp_path: Path) -> None:
    def feed(store: ModelStore, place: Path) -> Any:
        import tensorflow as tf

        from sublet.engine.functions import stow

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def most(x: Any) -> Any:
            return {"y": tf.reduce_max(x)}

        store.add("most", 123, *stow(most, str(place)))
        memory = np.zeros((100 << 20) + 64, np.uint8)
        begin = -memory.ctypes.data % 64 + 4
        unaligned = memory[begin : begin + (100 << 20)].view(np.float32)
        unaligned[-1] = 3
        return float(answer(store, "most", x=unaligned)["y"])

    assert run(feed, tmp_path) == 3


def test_what_a_call_takes_is_measured(run: Run, heavy: str) -> None:
    def measure(store: ModelStore, path: str) -> Any:
        store.add("heavy", 123, path)
        answer(store, "heavy", x=np.ones((1, 2), np.float32))
        x = np.ones((1 << 20, 2), np.float32)
        outputs, taken = store.measured("heavy", 123, lambda: answer(store, "heavy", x=x))
        return outputs["y"].nbytes, taken

    size, (taken, available) = run(measure, heavy)
    assert size <= taken < 2 * size
    assert available <= (64 - 8) << 20


def test_the_one_that_is_worth_least_makes_room_for_a_new_one(run: Run, heavy: str) -> None:
    def fill(store: ModelStore, path: str) -> Any:
        x = np.ones((1, 2), np.float32)
        for number in range(7):
            store.add(f"m{number}", 123, path)
            answer(store, f"m{number}", x=x)
            for _ in range(1000):
                # All load in much the same time, and this one is used all the time.
                room["now"] += 1
                store.use("m3", 123)
        return ready(store), held_by_models(store), store._meter.held()

    models, memory, held = run(fill, heavy)
    assert len(models) == 6
    assert {"m3", "m6"} <= set(models)
    assert 6 * (8 << 20) <= memory <= held < memory + (1 << 16)


def test_pinned_and_busy_models_stay(run: Run, heavy: str) -> None:
    def fill(store: ModelStore, path: str) -> Any:
        room["busy"].add("m1")
        for number in range(8):
            store.add(f"m{number}", 123, path, {"pin": number == 0})
            store.load(f"m{number}", 123)
        return ready(store)

    assert set(run(fill, heavy)) >= {"m0", "m1", "m7"}


def test_a_newcomer_waits_until_a_model_is_no_longer_busy(run: Run, heavy: str) -> None:
    def wait(store: ModelStore, path: str) -> Any:
        import threading

        names = [f"m{number}" for number in range(6)]
        room["busy"].update(names)
        for name in names:
            store.add(name, 123, path)
            store.load(name, 123)
        store.add("late", 123, path)
        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(store.load("late", 123)))
        thread.start()
        thread.join(0.2)
        before = list(done)
        room["busy"].discard("m3")
        thread.join()
        return before, ready(store)

    assert run(wait, heavy) == ([], ["late", "m0", "m1", "m2", "m4", "m5"])


def test_what_can_never_fit_is_refused_at_once_and_the_answer_says_how_much_would_do(
    run: Run, heavy: str, tmp_path: Path
) -> None:
    def refuse(store: ModelStore, path: str) -> Any:
        store.add("large", 123, path)
        with pytest.raises(ServingError) as caught:
            store.load("large", 123)
        return caught.value.code, caught.value.message, room["events"]

    large = shutil.copytree(heavy, tmp_path / "large")
    os.truncate(large / "variables" / "variables.data-00000-of-00001", 100 << 20)
    code, text, events = run(refuse, str(large))
    assert code == Code.RESOURCE_EXHAUSTED
    assert "memory=128MiB" in text
    assert [event[0] for event in events] == ["failed"]


def test_idle_models_leave_and_give_everything_back(run: Run, heavy: str) -> None:
    def leave(store: ModelStore, path: str) -> Any:
        store.add("m", 123, path, {"idle_seconds": 60})
        before = store._meter.held()
        store.load("m", 123)
        store.use("m", 123)
        room["now"] += 59
        kept = store.sweep()
        room["now"] += 2
        return kept, store.sweep(), ready(store), store._meter.held() == before

    assert run(leave, heavy) == ([], [("m", 123)], [], True)


def test_damaged_variables_are_told_and_not_tried_again_at_once(
    run: Run, heavy: str, tmp_path: Path
) -> None:
    def fail(store: ModelStore, path: str) -> Any:
        store.add("m", 1, path)
        codes = []
        for wait in (0, 1, 10):
            room["now"] += wait
            with pytest.raises(ServingError) as caught:
                store.load("m", 1)
            codes.append(caught.value.code)
        loads = [event for event, *_ in room["events"]].count("loading")
        return codes, loads, store.statistics()[0]["state"], caught.value.message

    bad = shutil.copytree(heavy, tmp_path / "bad")
    os.truncate(bad / "variables" / "variables.data-00000-of-00001", 1000)
    codes, loads, state, text = run(fail, str(bad))
    assert codes == [Code.DATA_LOSS] * 3
    assert (loads, state) == (2, "failed")
    assert "Copy the whole directory again" in text


def test_a_model_that_never_ends_its_initialisation_is_given_up_and_others_go_on(
    run: Run, tmp_path: Path
) -> None:
    def give_up(store: ModelStore, place: Path) -> Any:
        store.add("endless", 1, exports.endless(place), {"load_timeout": 0.5})
        with pytest.raises(ServingError) as caught:
            store.load("endless", 1)
        known(store, HALF)
        result = answer(store, HALF, x=np.ones((1, 1), np.float32))["y"].tolist()
        return caught.value.code, result, store.statistics()[0]["state"]

    assert run(give_up, tmp_path / "endless") == (Code.DEADLINE_EXCEEDED, [[2.5]], "failed")


def test_a_load_that_cannot_be_stopped_counts_until_it_ends_and_others_go_on(
    run: Run, tmp_path: Path
) -> None:
    def begin(store: ModelStore, place: Path) -> Any:
        store.add("stuck", 1, exports.reading(place / "model", place / "pipe"))
        os.unlink(place / "pipe")
        os.mkfifo(place / "pipe")
        store.add("stuck", 1, str(place / "model"), {"load_timeout": 0.2})
        codes = []
        for _ in range(2):
            with pytest.raises(ServingError) as caught:
                store.load("stuck", 1)
            codes.append(caught.value.code)
            room["now"] += 1000
        known(store, HALF)
        result = answer(store, HALF, x=np.ones((1, 1), np.float32))["y"].tolist()
        states = {one["model"]: one["state"] for one in store.statistics()}
        return codes, result, states, held_by_models(store)

    codes, result, states, held = run(begin, tmp_path)
    assert codes == [Code.DEADLINE_EXCEEDED] * 2
    assert result == [[2.5]]
    assert states == {HALF: "ready", "stuck": "stuck"}
    assert held > 1 << 20

    def let_go(store: ModelStore) -> bool:
        return all(one["state"] != "stuck" for one in store.statistics())

    def fed() -> bool:
        # TensorFlow opens it more than once: who reads now may be gone before it is written.
        with contextlib.suppress(OSError):
            writing = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(writing, b"at last")
            finally:
                os.close(writing)
        return bool(run(let_go))

    wait_for(fed, "the load has ended")
    assert run(lambda store: held_by_models(store)) < 1 << 20


def test_what_is_forgotten_is_not_found(run: Run) -> None:
    def forget(store: ModelStore) -> Any:
        known(store, HALF)
        store.load(HALF, 123)
        store.forget(HALF, 123)
        with pytest.raises(ServingError) as caught:
            store.load(HALF, 123)
        return caught.value.code, store.use(HALF, 123), store.statistics()

    assert run(forget) == (Code.NOT_FOUND, None, [])


def test_an_out_of_memory_in_a_batch_evicts_what_is_idle(run: Run, heavy: str) -> None:
    def relieve(store: ModelStore, path: str) -> Any:
        import tensorflow as tf

        for name in ("a", "b"):
            store.add(name, 123, path)
            store.load(name, 123)
        text = "OOM when allocating tensor with shape[2,1048576] and type float on CPU"
        error = tf.errors.ResourceExhaustedError(None, None, text)
        first = store.relieve("a", 123, error)
        then = store.relieve("a", 123, error)
        assert then is not None
        return first, ready(store), then.code, then.message

    first, left, code, text = run(relieve, heavy)
    assert (first, left, code) == (None, ["a"], Code.RESOURCE_EXHAUSTED)
    assert "memory=128MiB" in text


def test_a_keras_file_is_served_and_loaded_again_without_keras(run: Run, tmp_path: Path) -> None:
    def serve(store: ModelStore, path: str) -> Any:
        import keras

        layers = [keras.Input((3,), name="x"), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.save(path)
        x = np.ones((4, 3), np.float32)
        expected = np.asarray(model(x))
        store.add("k", 123, path)
        first = answer(store, "k", x=x)["output_0"]
        store.unload("k", 123)
        loading = keras.saving.load_model
        keras.saving.load_model = None
        again = answer(store, "k", x=x)["output_0"]
        keras.saving.load_model = loading
        bound = store.load("k", 123).signatures["serving_default"]
        np.testing.assert_allclose(first, expected, rtol=1e-5)
        np.testing.assert_array_equal(first, again)
        return bound.batchable, bound.stateful

    assert run(serve, str(tmp_path / "model.keras")) == (True, False)


def test_functions_and_models_in_memory_are_served(run: Run, tmp_path: Path) -> None:
    def serve(store: ModelStore, place: Path) -> Any:
        import tensorflow as tf

        from sublet.engine.functions import stow

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def graph(x: Any) -> Any:
            return {"y": x + 1}

        def plain(a: Any, b: Any) -> Any:
            return a + b, "text"

        results = []
        for name, thing in (("graph", graph), ("plain", plain)):
            (place / name).mkdir()
            store.add(name, 123, *stow(thing, str(place / name)))
        results.append(answer(store, "graph", x=np.ones(2, np.float32))["y"].tolist())
        outputs = answer(store, "plain", a=np.ones(2), b=np.ones(2))
        results.append((outputs["output_0"].tolist(), outputs["output_1"].tolist()))
        with pytest.raises(ServingError, match="cannot be served"):
            stow(3, str(place))
        return results

    assert run(serve, tmp_path) == [[2.0, 2.0], ([2.0, 2.0], b"text")]


def test_records_warm_a_model_up_before_it_is_ready(run: Run, tmp_path: Path) -> None:
    def warm(store: ModelStore, place: Path) -> Any:
        import tensorflow as tf
        from tensorflow_serving.apis import prediction_log_pb2

        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.model_spec.signature_name = "incr_counter_by"
        log.predict_log.request.inputs["delta"].CopyFrom(tf.make_tensor_proto(np.float32(5)))
        file = place / "assets.extra" / "tf_serving_warmup_requests"
        file.parent.mkdir()
        with tf.io.TFRecordWriter(str(file)) as writer:
            writer.write(log.SerializeToString())
            writer.write(log.SerializeToString())
        store.add("warm", 123, str(place))
        value = answer(store, "warm", "get_counter")["output"]
        store.unload("warm", 123)
        data = bytearray(file.read_bytes())
        data[20] ^= 1
        file.write_bytes(data)
        with pytest.raises(ServingError) as damaged:
            store.load("warm", 123)
        store.add("warm", 123, str(place), {"warm_up": False})
        cold = answer(store, "warm", "get_counter")["output"]
        return float(value), damaged.value.code, damaged.value.message, float(cold)

    place = Path(shutil.copytree(SAVED_MODELS / "saved_model_counter" / "00000123", tmp_path / "c"))
    value, code, text, cold = run(warm, place)
    assert (value, code, cold) == (10.0, Code.INVALID_ARGUMENT, 0.0)
    assert "Record them again" in text


def test_a_batch_of_each_size_warms_a_model_up(run: Run, tmp_path: Path) -> None:
    def warm(store: ModelStore, place: Path) -> Any:
        from sublet.engine.savedmodel_proto import Signature, TensorSpec
        from sublet.engine.signatures import Bound, Gate
        from sublet.engine.warmup import warm_up

        shapes = []

        def note(inputs: Any) -> Any:
            shapes.append([(array.dtype.name, array.shape) for array in inputs])
            return inputs

        def bound(name: str, shape: tuple[int, ...], dtype: int, free: bool) -> Bound:
            spec = {"x": TensorSpec("x:0", dtype, shape)}
            return Bound(name, Signature("", spec, spec), note, Gate(), False, free)

        signatures = {
            "rows": bound("rows", (-1, 3), 3, True),
            "one": bound("one", (1, 3), 3, False),
            "unknown": bound("unknown", (-1, -1), 1, True),
            "text": bound("text", (-1,), 7, True),
        }
        warm_up(str(place), signatures, [1, 4])
        return shapes

    assert run(warm, tmp_path) == [[("int32", (1, 3))], [("int32", (4, 3))]]


def test_versions_change_under_calls_and_none_fails(run: Run, heavy: str) -> None:
    def change(store: ModelStore, path: str) -> Any:
        import threading

        from sublet.engine.signatures import Unloaded

        over, answered, failed = threading.Event(), [0], []
        x = np.ones((1, 2), np.float32)

        def ask() -> None:
            while not over.is_set():
                for version in (1, 2):
                    loaded = store.use("m", version)
                    try:
                        if loaded is not None:
                            loaded.signatures["serving_default"].call({"x": x})
                            answered[0] += 1
                    except Unloaded:
                        pass  # Gone in between: an engine asks for the other.
                    except Exception as error:
                        failed.append(repr(error))

        for version in (1, 2):
            store.add("m", version, path)
        store.load("m", 1)
        before = store._meter.held()
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(20):
            store.load("m", 2 - number % 2)
            store.unload("m", 1 + number % 2)
        over.set()
        for thread in threads:
            thread.join()
        after = store._meter.held()
        assert before is not None
        assert after is not None
        return answered[0] > 0, failed, ready(store), abs(after - before) < 1 << 16

    assert run(change, heavy) == (True, [], ["m"], True)


def test_examples_in_records_are_run_as_they_are(run: Run, tmp_path: Path) -> None:
    def parse() -> Any:
        import tensorflow as tf
        from tensorflow_serving.apis import prediction_log_pb2

        from sublet.engine.warmup import parse

        def example(**features: float) -> Any:
            made = tf.train.Example()
            for name, value in features.items():
                made.features.feature[name].float_list.value.append(value)
            return made

        log = prediction_log_pb2.PredictionLog()
        request = log.regress_log.request
        request.model_spec.signature_name = "r"
        request.input.example_list.examples.append(example(x=1.0))
        multi = prediction_log_pb2.PredictionLog()
        multi.multi_inference_log.request.tasks.add().model_spec.signature_name = "a"
        multi.multi_inference_log.request.tasks.add().model_spec.signature_name = "b"
        given = multi.multi_inference_log.request.input.example_list_with_context
        given.examples.append(example(x=1.0))
        given.context.CopyFrom(example(c=2.0))
        (plain,) = parse(memoryview(log.SerializeToString()))
        several = list(parse(memoryview(multi.SerializeToString())))
        merged = tf.train.Example.FromString(several[0].inputs[""][0])
        assert merged == example(x=1.0, c=2.0)
        assert plain.inputs[""][0] == example(x=1.0).SerializeToString(deterministic=True)
        return [plain.signature, *(one.signature for one in several)]

    assert run(lambda store: parse()) == ["r", "a", "b"]


def test_whoever_listens_knows_which_model_ended_the_process(run: Run, tmp_path: Path) -> None:
    def end(store: ModelStore, place: Path) -> None:
        def tell(event: str, name: str, version: int, _: object) -> None:
            (place / "told").write_text(f"{event} {name} {version}")

        store._on_event = tell
        store.add("fatal", 7, exports.exiting(place / "model"))
        store.load("fatal", 7)

    with pytest.raises(ChildProcessError):
        run(end, tmp_path)
    assert (tmp_path / "told").read_text() == "loading fatal 7"
