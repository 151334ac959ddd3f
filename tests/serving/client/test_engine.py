"""`sublet.Engine` and `sublet.connect`, with real models under a real lease."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.channel.codes import Code
from sublet.errors import TooLarge
from support.numpy_engine import floats
from support.sandbox import Sandbox, wait_for

MODELS = Path(__file__).parents[2] / "data" / "savedmodels"
HALF = MODELS / "saved_model_half_plus_two_cpu" / "00000123"


@pytest.fixture(scope="module")
def home(shared_sandbox: Sandbox) -> Iterator[Sandbox]:
    """The shared home, for engines that are made in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("SUBLET"):
                patch.delenv(name)
        patch.setenv("SUBLET_HOME", str(shared_sandbox.home))
        yield shared_sandbox


@pytest.fixture(scope="module")
def engine(home: Sandbox) -> Iterator[sublet.Engine]:
    with sublet.Engine(memory="256MiB") as one:
        one.load("half", HALF)
        one.load("matrix", MODELS / "matrix_half_plus_two" / "1")
        one.load("counter", MODELS / "saved_model_counter" / "00000123")
        yield one


def test_an_engine_runs_the_models_it_has_loaded(engine: sublet.Engine) -> None:
    assert engine.run("half", [[1.0], [2.0]]).tolist() == [[2.5], [3.0]]
    futures = [engine.submit("half", [[float(n)]]) for n in range(10)]
    assert [one.result(30).item() for one in futures] == [n / 2 + 2 for n in range(10)]
    assert engine.run("matrix", np.zeros((4, 3, 3))).tolist() == [[[2.0] * 3] * 3] * 4


def test_an_engine_says_what_each_model_costs(engine: sublet.Engine) -> None:
    engine.run("half", [[1.0]])
    (half,) = [one for one in engine.models() if one["model"] == "half"]
    assert half["loaded"]
    assert half["requests"] >= 1
    assert half["load_seconds"] > 0
    assert half["bytes"] >= 0


def test_a_function_of_this_program_can_be_served(engine: sublet.Engine) -> None:
    offset = 10

    def shift(x: Any) -> Any:
        return x + offset

    engine.load("shift", shift, batchable=True)
    assert engine.run("shift", np.arange(3)).tolist() == [10, 11, 12]
    assert sublet.connect("shift")(x=np.arange(2)).tolist() == [10, 11]
    engine.unload("shift")
    with pytest.raises(sublet.ServingError, match=r"no model 'shift'.*half"):
        engine.run("shift", np.arange(3))


def test_what_cannot_be_loaded_says_why_and_leaves_the_others(
    engine: sublet.Engine, tmp_path: Path
) -> None:
    with pytest.raises(sublet.ServingError):
        engine.load("empty", tmp_path)
    with pytest.raises(sublet.ServingError, match="max_batch_size"):
        engine.load("other", HALF, max_batch_size=0)
    assert {one["model"] for one in engine.models()} == {"half", "matrix", "counter"}
    assert engine.run("half", [[1.0]]).item() == 2.5


@pytest.mark.parametrize(
    ("error", "code"), [(KeyError("k"), Code.INTERNAL), (SystemExit(3), Code.INTERNAL)]
)
def test_what_a_function_raises_is_told_by_its_name(
    engine: sublet.Engine, error: BaseException, code: Code
) -> None:
    def fail(x: Any) -> Any:
        raise error

    engine.load("fail", fail)
    with pytest.raises(sublet.ServingError, match=type(error).__name__) as caught:
        engine.run("fail", np.arange(2))
    assert caught.value.code == code
    engine.unload("fail")


def test_a_forked_child_that_ends_takes_nothing_along(home: Sandbox) -> None:
    code = (
        "import os, sys, numpy as np, sublet\n"
        "engine = sublet.Engine(memory='64MiB')\n"
        "engine.load('here', lambda x: x + 1)\n"
        "if not (child := os.fork()): engine.close(); sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "engine.worker.client.ask({'ask': 'unload', 'model': 'here', 'version': 1})\n"
        "print(engine.run('here', np.arange(2)).tolist())\n"
        "engine.close()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout.split("\n")[0] == "[1, 2]", said.stderr


def test_what_takes_the_place_of_a_model_may_take_other_inputs(engine: sublet.Engine) -> None:
    engine.load("change", lambda x: x + 1)
    model = sublet.connect("change")
    assert model(x=np.arange(2)).tolist() == [1, 2]
    engine.load("change", lambda y: y + 2)
    assert model(np.arange(2)).tolist() == [2, 3]
    engine.load("change", lambda z: z + 3)
    assert asyncio.run(model.call_async(z=np.arange(2))).tolist() == [3, 4]
    engine.unload("change")


def test_a_model_stays_when_what_was_to_replace_it_cannot_be_loaded(
    engine: sublet.Engine, tmp_path: Path
) -> None:
    engine.load("kept", lambda x: x + 1)
    with pytest.raises(sublet.ServingError):
        engine.load("kept", tmp_path)
    assert engine.run("kept", np.arange(2)).tolist() == [1, 2]
    engine.load("kept", lambda x: x + 2, version=2)
    assert engine.run("kept", np.arange(2)).tolist() == [2, 3]
    engine.unload("kept", 2)
    assert engine.run("kept", np.arange(2)).tolist() == [1, 2]
    engine.unload("kept")


def test_a_model_that_is_loaded_again_is_what_its_files_are_now(
    engine: sublet.Engine, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    shutil.copytree(HALF, path)
    engine.load("again", path)
    assert engine.run("again", [[1.0]]).item() == 2.5
    shutil.rmtree(path)
    shutil.copytree(MODELS / "saved_model_half_plus_three" / "00000123", path)
    engine.load("again", path)
    assert engine.run("again", [[1.0]]).item() == 3.5
    engine.unload("again")


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("", {}, "no name"),
        ("m", {"version": "x"}, "no whole number"),
        ("m", {"wieght": 2}, "no option 'wieght'.*weight"),
    ],
)
def test_a_wrong_load_says_what_is_right(
    engine: sublet.Engine, name: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(sublet.ServingError, match=said):
        engine.load(name, HALF, **more)


def test_rows_of_different_lengths_are_refused_by_name(engine: sublet.Engine) -> None:
    with pytest.raises(sublet.ServingError, match="'x' has rows of different lengths"):
        engine.run("half", [[1.0], [2.0, 3.0]])


def test_a_model_is_called_from_another_process_without_tensorflow(engine: sublet.Engine) -> None:
    code = (
        "import sys, numpy as np, sublet; m = sublet.connect('half'); "
        "print(m(np.float32([[6]])).item(), 'tensorflow' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.split() == ["5.0", "False"]


def test_state_is_kept_and_seen_by_all_callers(engine: sublet.Engine) -> None:
    one, other = sublet.connect("counter"), sublet.connect("counter")
    names = sorted(one.signatures.all)
    assert "incr_counter" in names
    before = one.run(signature="get_counter").item()
    for model in (one, other, one):
        model.run(signature="incr_counter")
    assert other.run(signature="get_counter").item() == before + 3


def test_calls_of_many_threads_and_coroutines_share_a_connection(engine: sublet.Engine) -> None:
    model = sublet.connect("half")
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        found[number] = [model([[float(number + n)]]).item() for n in range(20)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()

    async def many() -> list[Any]:
        return await asyncio.gather(*(model.call_async([[float(n)]]) for n in range(50)))

    assert [one.item() for one in asyncio.run(many())] == [n / 2 + 2 for n in range(50)]
    for thread in threads:
        thread.join()
    assert found == {n: [(n + m) / 2 + 2 for m in range(20)] for n in range(8)}


def test_what_an_engine_computes_pushes_nobody_aside(engine: sublet.Engine) -> None:
    engine.run("half", np.ones((64, 1), np.float32))
    threads = os.listdir(f"/proc/{engine.worker.pid}/task")
    usual = [one for one in threads if os.sched_getscheduler(int(one)) != os.SCHED_BATCH]
    # The one that measures the worker was there before the engine's program.
    assert len(usual) <= 1 < len(threads)


def test_a_forked_child_has_a_connection_of_its_own(engine: sublet.Engine) -> None:
    code = (
        "import os, numpy as np, sublet; m = sublet.connect('half'); "
        "x = np.ones((20000, 1), 'f4'); m(x); pid = os.fork(); ok = (m(x) == 2.5).all(); "
        "pid or os._exit(0 if ok else 1); print(ok, os.waitpid(pid, 0)[1])"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout.split() == ["True", "0"]


def test_a_call_that_is_cancelled_while_it_waits_is_not_run(
    engine: sublet.Engine, tmp_path: Path
) -> None:
    directory = str(tmp_path)

    def held(x: Any) -> Any:
        import os
        import time

        open(os.path.join(directory, str(x.item())), "w").close()
        while not os.path.exists(os.path.join(directory, "go")):
            time.sleep(0.01)
        return x

    engine.load("held", held)
    # More than run at a time.
    calls = [engine.submit("held", np.array([number])) for number in range(10)]
    assert calls[9].cancel()

    async def give_up() -> None:
        model = sublet.connect("held")
        call = asyncio.create_task(model.call_async(np.array([10])))
        await asyncio.sleep(0)  # It is sent.
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # What is answered now was asked after that.
        model._connect().ask({"ask": "models"})

    asyncio.run(give_up())
    engine.models()
    (tmp_path / "go").touch()
    assert [one.result(30).item() for one in calls[:9]] == list(range(9))
    assert engine.run("held", np.array([11])).item() == 11
    ran = {path.name for path in tmp_path.iterdir()} - {"go"}
    assert ran == {str(number) for number in (*range(9), 11)}
    engine.unload("held")


def test_large_arrays_and_buffers_give_what_small_ones_do(engine: sublet.Engine) -> None:
    model = sublet.connect("half")
    array = np.random.default_rng(1).random((300_000, 1), np.float32)
    np.testing.assert_allclose(model(array), array / 2 + 2, rtol=1e-6)
    buffer = model.buffer(array.shape)
    buffer[:] = array
    for _ in range(3):
        np.testing.assert_allclose(model(buffer), array / 2 + 2, rtol=1e-6)
    np.testing.assert_array_equal(buffer, array)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m(), "The inputs of this model are x"),
        (lambda m: m(floats([[1]]), floats([[1]])), "Name the inputs"),
        (lambda m: m(y=floats([[1]])), "given were y"),
        (lambda m: m([["a"]]), "has to be float32"),
        (lambda m: m(np.ones((1, 1), complex)), "has to be float32"),
        (lambda m: m.run(floats([[1]]), signature="no"), "has no signature 'no'"),
    ],
)
def test_a_wrong_call_says_how_to_call(engine: sublet.Engine, call: Any, says: str) -> None:
    with pytest.raises(sublet.ServingError, match=says) as raised:
        call(sublet.connect("half"))
    assert raised.value.code == Code.INVALID_ARGUMENT


def test_a_model_that_nobody_serves_is_said_with_what_is(engine: sublet.Engine) -> None:
    with pytest.raises(sublet.ServingError, match=r"No model 'tree' is served here, only: .*half"):
        sublet.connect("tree")


def test_nothing_is_served_says_how_to_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLET_HOME", str(tmp_path))
    with pytest.raises(sublet.ServingError, match="sublet serve"):
        sublet.connect("half")


def test_a_socket_that_was_left_behind_is_cleared_away(engine: sublet.Engine) -> None:
    left = Path(engine.worker.path).with_name("left.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(str(left))
    assert sublet.connect("half")([[1.0]]).item() == 2.5
    assert not left.exists()


def test_a_client_finds_the_engine_that_takes_the_place_of_one_that_was_killed(
    home: Sandbox,
) -> None:
    with sublet.Engine(memory="128MiB") as first:
        first.load("again", HALF)
        model = sublet.connect("again")
        assert model([[1.0]]).item() == 2.5
        pid = first.worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not first.worker.alive, "the engine's end is known")
        with pytest.raises(sublet.ServingError) as raised:
            first.run("again", [[1.0]])
        assert raised.value.code == Code.UNAVAILABLE
    with sublet.Engine(memory="128MiB") as second:
        second.load("again", HALF)
        assert model([[2.0]]).item() == 3.0


OWNER = (
    "import signal, sublet; engine = sublet.Engine(memory='64MiB'); "
    "engine.load('kept', lambda x: x); "
    "print(engine.worker.pid, engine.worker.path, engine.worker.files, flush=True); signal.pause()"
)


@pytest.fixture
def owner(home: Sandbox) -> Iterator[tuple["subprocess.Popen[str]", int, Path, Path]]:
    """Another process that has an engine; the engine's number, socket and directory."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, path, files = process.stdout.readline().split()
        yield process, int(pid), Path(path), Path(files)
        process.kill()


@pytest.mark.parametrize("both", [False, True])
def test_an_engine_ends_with_its_owner_and_what_they_leave_is_cleared_away(
    engine: sublet.Engine, owner: tuple["subprocess.Popen[str]", int, Path, Path], both: bool
) -> None:
    process, pid, path, files = owner
    assert path.exists()
    assert list(files.iterdir())
    if both:
        process.send_signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the engine has gone")
    with sublet.Engine(memory="64MiB"):
        assert not path.exists()
        assert not files.exists()
    assert Path(engine.worker.files).exists()
    assert engine.run("half", [[1.0]]).item() == 2.5


def test_an_engine_that_finds_no_room_says_so(home: Sandbox) -> None:
    with pytest.raises(TooLarge, match="900 GiB"):
        sublet.Engine(memory="900GiB")


def test_an_engine_that_was_stopped_is_passed_over_by_callers_and_ended_by_its_owner(
    home: Sandbox, engine: sublet.Engine
) -> None:
    with sublet.Engine(memory="256MiB") as stopped:
        assert stopped.worker.pid is not None
        os.kill(stopped.worker.pid, signal.SIGSTOP)
        # The newest is asked first.
        assert sublet.connect("half")([[1.0]]).tolist() == [[2.5]]
        with pytest.raises(sublet.ServingError) as wrong:
            stopped.worker.client.ask({"ask": "hello"}, timeout=0.2)
        assert wrong.value.code == Code.DEADLINE_EXCEEDED
        pid = stopped.worker.pid
    assert not stopped.worker.alive
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its process is gone")
