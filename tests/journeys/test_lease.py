"""`sublet.lease` in a process of one's own: granted, enforced, seen, and ended with the process."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standin import Gpu, Machine
from support.queue import reached, row
from support.resident import Resident, residents
from support.sandbox import Sandbox, wait_for

NewSandbox = Callable[..., Sandbox]
MakeResident = Callable[..., Resident]

LEASE = "import sublet; mine = sublet.lease({}); print(mine.job)"


@pytest.fixture
def own_sandbox(new_sandbox: NewSandbox) -> Sandbox:
    """A device on which one lease of 1 GiB leaves no room for another."""
    return new_sandbox(SUBLET_CPU_MEMORY="2GiB")


@pytest.fixture
def either_own(new_either_sandbox: Callable[[int, int], Sandbox]) -> Sandbox:
    """The same on the CPU and on a card."""
    return new_either_sandbox(2048, 2500)


@pytest.fixture
def either_resident(either_own: Sandbox) -> Iterator[MakeResident]:
    with residents(either_own) as make:
        yield make


@pytest.fixture
def resident(own_sandbox: Sandbox) -> Iterator[MakeResident]:
    """Makes processes that can ask for leases in this sandbox."""
    with residents(own_sandbox) as make:
        yield make


def held(sandbox: Sandbox) -> list[dict[str, Any]]:
    return sandbox.status()["leases"]  # type: ignore[no-any-return]


def kill_broker(sandbox: Sandbox) -> int:
    pid = int(sandbox.status()["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pid not in sandbox.processes(), "the broker is dead")
    return pid


@pytest.mark.every_python
def test_tensorflow_is_held_to_the_lease_of_its_process(
    either_own: Sandbox, either_resident: MakeResident
) -> None:
    """Though it was imported before: what fits runs, what does not is refused by its allocator."""
    own_sandbox = either_own
    one = either_resident()
    one.do("import tensorflow as tf; import sublet")
    assert one.do("print(repr(sublet.lease('256MiB', name='mine')))") == (
        f"<sublet.Lease 256 MiB on {own_sandbox.device}, #1 mine>"
    )
    one.do("x = tf.zeros([16, 1024, 1024])")
    (lease,) = wait_for(
        lambda: [now for now in held(own_sandbox) if (now["peak"] or 0) >= 64 << 20],
        "its peak has been measured",
    )
    assert (lease["name"], lease["pid"], lease["lease"]) == ("mine", one.pid, 256 << 20)
    assert lease["peak"] <= 256 << 20
    assert one.fails("y = tf.zeros([512, 1024, 1024])").startswith("ResourceExhaustedError")
    assert "before the process ends" in one.fails("sublet.lease().release()")
    one.end()
    ended = reached(own_sandbox, 1, "finished")
    assert (ended["cause"], ended["exit"]) == ("exited", 0)
    assert 64 << 20 <= ended["peak"] <= 256 << 20
    assert held(own_sandbox) == []


@pytest.mark.parametrize(
    "started",
    [
        "tf.zeros([1])",
        "tf.compat.v1.Session(graph=tf.Graph()).close()",
    ],
    ids=["eager", "session"],
)
def test_a_runtime_that_has_started_is_refused_with_the_fix(
    own_sandbox: Sandbox, resident: MakeResident, started: str
) -> None:
    """And nobody is asked for anything."""
    one = resident()
    one.do(f"import tensorflow as tf; import sublet; {started}")
    said = one.fails("sublet.lease('64MiB')")
    assert "TensorFlow's runtime has started in this process" in said
    assert "Restart the kernel" in said
    assert not own_sandbox.home.exists()


def test_gpus_that_were_looked_for_are_too_late_for_a_lease(resident: MakeResident) -> None:
    """The driver reads which of them it may show only once."""
    one = resident()
    one.do(
        "import tensorflow as tf; import sublet\n"
        "from tensorflow.python.eager import context\n"
        "tf.config.list_physical_devices()\n"
        "gpu = context.PhysicalDevice('/physical_device:GPU:0', 'GPU')\n"
        "context.context()._physical_devices.append(gpu)"
    )
    assert "TensorFlow has looked for the GPUs" in one.fails("sublet.lease('64MiB')")


def test_a_lease_ends_with_its_process_however_that_ends(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    killed, done = resident(), resident()
    killed.do(LEASE.format("'64MiB'"))
    done.do(LEASE.format("'64MiB'"))
    assert [now["pid"] for now in held(own_sandbox)] == [killed.pid, done.pid]
    killed.kill()
    assert reached(own_sandbox, 1, "finished")["cause"] == "lost"
    done.end()
    assert reached(own_sandbox, 2, "finished")["cause"] == "exited"
    assert own_sandbox.status()["devices"][0]["leased"] == 0


def test_a_script_that_an_error_ends_has_failed(own_sandbox: Sandbox) -> None:
    own_sandbox.write("train.py", "import sublet; sublet.lease('64MiB'); raise ValueError('so')")
    answer = own_sandbox.python("train.py", "--lr", "1")
    assert "ValueError: so" in answer.stderr
    ended = reached(own_sandbox, 1, "finished")
    assert (ended["name"], ended["cause"], ended["exit"]) == ("train.py", "exited", 1)


def test_a_second_call_gives_the_same_lease_and_no_other(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    one = resident()
    one.do(LEASE.format("'64MiB'"))
    one.do(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor() as pool:\n"
        "    for other in pool.map(lambda _: sublet.lease('64MiB'), range(4)):\n"
        "        assert other is mine\n"
        "assert sublet.lease() is mine\n"
    )
    said = one.fails("sublet.lease('65MiB')")
    assert "holds <sublet.Lease 64.0 MiB on cpu, #1 python> already" in said
    assert "Restart the kernel" in said
    assert len(held(own_sandbox)) == 1


def test_a_forked_process_is_refused(own_sandbox: Sandbox, resident: MakeResident) -> None:
    """It has the memory of the lease, and not the lease."""
    one = resident()
    one.do(LEASE.format("'64MiB'"))
    said = one.do(
        "import os, sys\n"
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    try: sublet.lease('64MiB')\n"
        "    except sublet.SubletError as error: os.write(writing, str(error).encode())\n"
        "    os._exit(0)\n"
        "os.wait(); print(os.read(reading, 1000).decode())"
    )
    assert f"was forked from {one.pid}" in said
    assert "spawn" in said


def test_leases_nest_and_do_not_add(own_sandbox: Sandbox) -> None:
    """In a program of Sublet's there is a lease already."""
    code = (
        "import sublet\n"
        "for asked in ('64MiB', 'auto', '1%'):\n"
        "    mine = sublet.lease(asked)\n"
        "    print(mine.job, mine.memory, mine.device)\n"
        "for asked in ({'memory': '65MiB'}, {'device': 'gpu0'}):\n"
        "    try: sublet.lease(**asked)\n"
        "    except sublet.SubletError as error: print(error)\n"
    )
    own_sandbox.write("nested.py", code)
    answer = own_sandbox.sublet("run", "--memory", "64MiB", "nested.py", check=True)
    *same, large, elsewhere = answer.stdout.splitlines()
    assert same == [f"1 {64 << 20} cpu"] * 3
    assert "under the lease of job #1: 64.0 MiB on cpu" in large
    assert "sublet run --memory" in large
    assert "not gpu0" in elsewhere
    assert own_sandbox.status()["leases"] == []


def test_a_lease_that_has_ended_is_no_outer_lease(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    """A shell that outlives the notebook that started it may still name its lease."""
    first = resident()
    first.do(LEASE.format("'64MiB'"))
    variable = first.do("import os; print(os.environ['SUBLET_LEASE'])")
    first.end()
    reached(own_sandbox, 1, "finished")
    wait_for(lambda: not (own_sandbox.home / "runs" / "1.1").exists(), "its directory has gone")
    second = resident(SUBLET_LEASE=variable)
    assert second.do(LEASE.format("'96MiB'")) == "2"
    environ = "import os; print(os.environ['TF_CPU_BFC_MEM_LIMIT_IN_MB'])"
    assert second.do(environ) == "96"


def test_one_that_waits_is_granted_when_there_is_room(
    either_own: Sandbox, either_resident: MakeResident
) -> None:
    own_sandbox = either_own
    first, second = either_resident(), either_resident()
    first.do(LEASE.format("'1GiB'"))
    second.begin(LEASE.format("'1GiB'"))
    (waiting,) = wait_for(
        lambda: [now for now in own_sandbox.status()["waiting"] if "held by #1" in now["reason"]],
        "the second waits for the first",
    )
    assert waiting["job"] == 2
    first.end()
    assert second.answer() == {"said": "2\n", "error": None}
    assert [now["job"] for now in held(own_sandbox)] == [2]


def test_waiting_ends_with_the_time_for_it_or_with_ctrl_c(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    """Nothing is left of it, and the process may ask again."""
    first, second = resident(), resident()
    first.do(LEASE.format("'1GiB'"))
    said = second.fails(LEASE.format("'1GiB', timeout=0"))
    assert said.startswith("TimedOut: No lease at once: needs 1.0 GiB")
    assert "held by #1" in said
    caught = "try: sublet.lease('1GiB', timeout=0.1)\nexcept TimeoutError: print('in vain')"
    assert second.do(caught) == "in vain"
    second.begin(LEASE.format("'1GiB'"))
    wait_for(lambda: own_sandbox.status()["waiting"], "it waits")
    second.interrupt()
    assert second.answer()["error"] == "KeyboardInterrupt"
    wait_for(lambda: not own_sandbox.status()["waiting"], "nobody waits")
    assert second.do(LEASE.format("'64MiB'")) == "5"


def test_one_that_dies_while_it_waits_is_dropped_though_its_child_has_its_socket(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    """So that the line goes on."""
    first, second, third = resident(), resident(), resident()
    first.do(LEASE.format("'1GiB'"))
    second.begin(
        "import os, threading, time, sublet\n"
        "def fork():\n"
        "    while not sublet.status().waiting: time.sleep(0.02)\n"
        "    if (child := os.fork()) == 0: time.sleep(1000)\n"
        "    open('child', 'w').write(str(child) + ' ')\n"
        "threading.Thread(target=fork).start()\n"
        "sublet.lease('1GiB')"
    )
    child = wait_for(lambda: _words(own_sandbox.work / "child"), "it has a child")
    try:
        second.process.kill()
        second.process.wait()
        third.begin(LEASE.format("'1GiB'"))
        wait_for(lambda: len(own_sandbox.status()["waiting"]) == 2, "the third waits, too")
        first.end()
        assert third.answer() == {"said": "3\n", "error": None}
        assert row(own_sandbox, 2)["state"] == "finished"
    finally:
        os.kill(int(child), signal.SIGKILL)


def _words(path: Path) -> str:
    text = path.read_text() if path.exists() else ""
    return text.strip() if text.endswith(" ") else ""


def test_what_can_never_be_granted_is_refused_at_once(resident: MakeResident) -> None:
    one = resident()
    assert "TooLarge" in one.fails(LEASE.format("'64GiB'"))
    assert "no device 'gpu7'" in one.fails(LEASE.format("'64MiB', device='gpu7'"))
    assert "is not a share" in one.fails(LEASE.format("'much%'"))
    assert 'memory="2GiB"' in one.fails(LEASE.format("2 << 30"))
    assert "0 or more" in one.fails(LEASE.format("'64MiB', timeout=float('nan')"))
    assert "--cpus 4096" in one.fails(LEASE.format("'64MiB', cpus=4096"))


def test_a_lease_can_be_given_back_before_tensorflow_starts(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    """Then the process is as it was, and may have another."""
    one = resident(TF_CPU_BFC_MEM_LIMIT_IN_MB="999999")
    look = "import os; print(sorted(os.environ.items()), os.sched_getaffinity(0))"
    before = one.do(look)
    one.do(LEASE.format("'64MiB', cpus=1"))
    assert one.do(look) != before
    one.do("mine.release()")
    assert one.do(look) == before
    assert held(own_sandbox) == []
    assert row(own_sandbox, 1)["reason"] == "done: given back before TensorFlow started"
    assert "not this process's own" in one.fails("mine.release()")
    assert one.do(LEASE.format("'96MiB'")) == "2"
    kill_broker(own_sandbox)
    one.do("mine.release()")
    assert held(own_sandbox) == []


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_nobody_else_ends_or_pauses_it(
    own_sandbox: Sandbox, resident: MakeResident, verb: str
) -> None:
    one = resident()
    one.do(LEASE.format("'64MiB'"))
    answer = own_sandbox.sublet(verb, "1")
    assert answer.returncode == 2
    assert f"held by the process {one.pid} itself" in answer.stderr
    assert held(own_sandbox)[0]["state"] == "running"
    answer = own_sandbox.sublet("down", "--stop", check=True)
    assert f"#1 python: keeps running (pid {one.pid})" in answer.stdout
    assert held(own_sandbox)[0]["pid"] == one.pid


def test_one_that_waits_can_be_cancelled(own_sandbox: Sandbox, resident: MakeResident) -> None:
    first, second = resident(), resident()
    first.do(LEASE.format("'1GiB'"))
    second.begin(LEASE.format("'1GiB'"))
    wait_for(lambda: own_sandbox.status()["waiting"], "it waits")
    own_sandbox.sublet("cancel", "2", check=True)
    assert "not granted: `sublet cancel`" in second.answer()["error"]


def test_a_lease_outlives_the_broker(own_sandbox: Sandbox, resident: MakeResident) -> None:
    """The next one finds it by the process, and sees its end."""
    one = resident()
    one.do(LEASE.format("'64MiB'"))
    before = held(own_sandbox)
    kill_broker(own_sandbox)
    (after,) = held(own_sandbox)
    assert after == before[0]
    one.end()
    assert reached(own_sandbox, 1, "finished")["cause"] == "exited"


def test_a_process_that_ends_while_no_broker_runs_holds_nothing(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    ended, killed = resident(), resident()
    ended.do(LEASE.format("'64MiB'"))
    killed.do(LEASE.format("'64MiB'"))
    kill_broker(own_sandbox)
    ended.end()
    killed.kill()
    assert held(own_sandbox) == []
    assert [row(own_sandbox, number)["cause"] for number in (1, 2)] == ["exited", "lost"]


def test_one_that_waits_keeps_its_place_when_the_broker_dies(
    own_sandbox: Sandbox, resident: MakeResident
) -> None:
    first, second = resident(), resident()
    first.do(LEASE.format("'1GiB'"))
    second.begin(LEASE.format("'1GiB'"))
    wait_for(lambda: own_sandbox.status()["waiting"], "it waits")
    kill_broker(own_sandbox)
    wait_for(
        lambda: [now for now in own_sandbox.status()["waiting"] if "held by #1" in now["reason"]],
        "it waits again, for room",
    )
    first.end()
    assert second.answer() == {"said": "2\n", "error": None}


@pytest.mark.parametrize("died", ["before", "after"])
def test_an_offer_is_taken_or_given_up_though_the_broker_dies_over_it(
    own_sandbox: Sandbox, resident: MakeResident, died: str
) -> None:
    """Before the process has taken it, it is made anew; afterwards it holds, without a word."""
    one = resident(DIED=died)
    own_sandbox.status()
    broker = own_sandbox.status()["pid"]
    one.do(
        "import os, signal, sublet\n"
        "from sublet.client import lease as module\n"
        "claim = module.attempt_files.claim\n"
        "def claims(directory, owner):\n"
        "    module.attempt_files.claim = claim\n"
        "    taken = claim(directory, owner) if os.environ['DIED'] == 'after' else None\n"
        f"    os.kill({broker}, signal.SIGKILL)\n"
        "    if taken is None:\n"
        "        import subprocess, sys\n"
        "        subprocess.run([sys.executable, '-m', 'sublet', 'status'], check=True,\n"
        "                       stdout=subprocess.DEVNULL)\n"
        "        taken = claim(directory, owner)\n"
        "        assert not taken\n"
        "    return taken\n"
        "module.attempt_files.claim = claims\n"
    )
    assert one.do(LEASE.format("'64MiB'")) == "1"
    (lease,) = held(own_sandbox)
    assert (lease["pid"], lease["state"]) == (one.pid, "running")
    assert lease["attempt"] == (2 if died == "before" else 1)


def test_what_a_process_really_holds_counts(own_sandbox: Sandbox, resident: MakeResident) -> None:
    """A notebook's own data is charged to it, where that is more than its lease."""
    one = resident()
    one.do(LEASE.format("'64MiB'"))
    one.do("data = b'x' * (700 << 20)")
    (lease,) = wait_for(lambda: [now for now in held(own_sandbox) if now["over"]], "it is seen")
    assert own_sandbox.status()["devices"][0]["leased"] > lease["charge"]


def test_on_a_card_the_process_sees_the_one_of_its_lease(
    new_sandbox: NewSandbox, new_machine: Callable[..., Machine]
) -> None:
    machine = new_machine(Gpu(uuid="GPU-aaaa", total=16 << 30), Gpu(uuid="GPU-bbbb", total=8 << 30))
    sandbox = new_sandbox(**machine.environ)
    with residents(sandbox) as make:
        one = make(CUDA_VISIBLE_DEVICES="0,1")
        one.do(LEASE.format("'2GiB'"))
        names = ["CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_CPU_ALLOCATOR_USE_BFC"]
        seen = one.do(f"import os, json; print(json.dumps([os.environ.get(n) for n in {names}]))")
        assert json.loads(seen) == ["GPU-bbbb", "true", None]
        assert held(sandbox)[0]["device"] == "gpu1"
        assert "CUDA_VISIBLE_DEVICES=0,1 becomes GPU-bbbb" in one.end()
