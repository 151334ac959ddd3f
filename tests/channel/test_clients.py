"""The client's half: routes, memory that is used again, and calls that share a client."""

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublet.channel import records
from sublet.channel.async_client import AsyncClient
from sublet.channel.client_protocol import ClientProtocol
from sublet.channel.codes import Code, NotServed
from sublet.channel.packets import Outbox, Outgoing, Packet
from sublet.channel.segments import Segments
from sublet.channel.sync_client import SyncClient, Unsent
from sublet.errors import ServingError
from support.numpy_engine import NumpyEngine, floats, numpy_engine
from support.sandbox import PATIENCE, wait_for


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NumpyEngine]:
    with numpy_engine(tmp_path_factory.mktemp("engine"), slots=2) as one:
        for name in ("double", "sizes", "held"):
            one.add(name)
        yield one


def test_segments_are_used_again_and_bounded() -> None:
    segments = Segments()
    first = segments.take(300_000)
    os.close(first.hand_over())
    segments.put_back(first)
    assert segments.take(400_000) is first
    unknown = segments.take(300_000)
    segments.put_back(unknown)
    assert segments.take(300_000) is not unknown
    large = [segments.take(200 << 20) for _ in range(3)]
    for one in large:
        os.close(one.hand_over())
        segments.put_back(one)
    assert segments.dropped == [one.number for one in large[1:]]


def test_a_buffer_goes_back_when_its_array_and_all_views_of_it_are_gone() -> None:
    segments = Segments()
    array = segments.lend((1000, 100), np.dtype(np.float32))
    found = segments.find_lent(array)
    assert found is not None
    segment, _ = found
    os.close(segment.hand_over())
    part = array[10:]
    del array
    gc.collect()
    assert segments.take(400_000) is not segment
    del part
    gc.collect()
    assert segments.take(400_000) is segment


def test_only_parts_of_a_buffer_that_are_aligned_are_found_in_it() -> None:
    segments = Segments()
    array = segments.lend((1 << 20,), np.dtype(np.uint8))
    found = segments.find_lent(array)
    assert found is not None
    assert segments.find_lent(array[128:]) == (found[0], 128)
    assert segments.find_lent(array[100:]) is None
    assert segments.find_lent(np.empty(10)) is None


def test_any_part_of_a_buffer_can_be_sent(engine: NumpyEngine) -> None:
    buffer = engine.client.buffer((1 << 18,), np.float32)
    buffer[:] = np.arange(1 << 18)
    for start in (0, 1, 16, 1 << 17):
        part = buffer[start:].reshape(1, -1)
        answer = engine.client.submit("double", 1, "serving_default", {"x": part}).result(PATIENCE)
        assert (answer.outputs["y"] == 2 * part).all()


def test_a_buffer_that_is_on_its_way_is_not_used_for_anything_else(tmp_path: Path) -> None:
    with numpy_engine(tmp_path) as engine:
        engine.add("held", max_batch_size=1000)
        buffer = engine.client.buffer((1000, 100), np.float32)
        buffer.fill(1)
        future = engine.client.submit("held", 1, "serving_default", {"x": buffer})
        del buffer
        gc.collect()
        other = engine.client.buffer((1000, 100), np.float32)
        other.fill(2)
        engine.touch("go")
        assert (future.result(PATIENCE).outputs["y"] == 2).all()


def test_records_are_gathered_into_packets_that_are_not_too_large() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        outbox = Outbox(mine)
        for number in range(100):
            record = records.plain(records.EVENT, call=number, body=bytes(4000))
            outbox.put(Outgoing((record,), len(record)))
        found: list[int] = []
        packets = 0
        while not outbox.flush() or len(found) < 100:
            packet = theirs.recv(1 << 20)
            assert len(packet) <= records.FULL
            found += [record.call for record in records.read(packet)]
            packets += 1
        assert found == list(range(100))
        assert packets < 10


@pytest.mark.parametrize("size", [1, 100_000])
def test_threads_and_futures_share_a_client(engine: NumpyEngine, size: int) -> None:
    """Each gets its own answer, whoever of them reads it."""
    client = engine.connect()
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(30):
            array = np.full((1, size), number * 1000 + turn, np.float32)
            if turn % 3:
                answer = client.call("double", 1, "serving_default", {"x": array})
            else:
                answer = client.submit("double", 1, "serving_default", {"x": array}).result(
                    PATIENCE
                )
            if not (answer.outputs["y"] == 2 * array).all():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not wrong
    client.close()


def test_calls_of_one_turn_of_the_loop_travel_together(engine: NumpyEngine) -> None:
    async def main() -> list[float]:
        client = await AsyncClient.open(engine.path)
        calls = [
            client.call("sizes", 1, "serving_default", {"x": floats([[n]])}) for n in range(16)
        ]
        sizes = [(await one).outputs["y"].item() for one in calls]
        client.close()
        return sizes

    engine.client.ask({"ask": "load", "model": "sizes", "version": 1})
    assert asyncio.run(main()) == [16] * 16


def test_a_port_asks_and_is_told_what_went_wrong(engine: NumpyEngine) -> None:
    async def main() -> None:
        client = await AsyncClient.open(engine.path)
        assert (await client.ask({"ask": "describe", "model": "double"}))["version"] == 1
        with pytest.raises(ServingError, match="Servable not found"):
            await client.call("none", 1, "serving_default", {"x": floats([[1]])})
        buffer = client.buffer((100, 1000), np.float32)
        buffer.fill(3)
        answer = await client.call("double", 1, "serving_default", {"x": buffer})
        assert (answer.outputs["y"] == 6).all()
        client.close()
        with pytest.raises(ServingError, match="has ended"):
            await client.call("double", 1, "serving_default", {"x": floats([[1]])})

    asyncio.run(main())


@pytest.mark.parametrize("way", ["run", "submit"])
def test_a_call_to_an_engine_that_is_gone_can_be_sent_to_another(way: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    client = SyncClient(ours)
    call = client.call if way == "run" else lambda *all: client.submit(*all).result(PATIENCE)
    with pytest.raises(Unsent):
        call("double", 1, "serving_default", {"x": floats([[1]])})
    assert client.closed
    client.close()


def test_a_cancelled_call_leaves_the_queue(engine: NumpyEngine) -> None:
    async def main() -> None:
        client = await AsyncClient.open(engine.path)
        calls = [
            client.call("held", 1, "serving_default", {"x": floats([[1, n]])}) for n in range(2)
        ]
        await asyncio.to_thread(
            wait_for, lambda: engine.model("held")["running"] == 1, "the first ones run"
        )
        other = client.call("held", 1, "serving_default", {"x": np.ones((3, 50_000), np.float32)})
        third = client.call("held", 1, "serving_default", {"x": floats([[5, 5]])})
        await asyncio.to_thread(
            wait_for, lambda: engine.model("held")["running"] == 2, "both slots are taken"
        )
        third.cancel()
        await asyncio.to_thread(
            wait_for, lambda: engine.model("held")["waiting"] == 0, "it waits no more"
        )
        engine.touch("go")
        for number, one in enumerate(calls):
            assert (await one).outputs["y"].tolist() == [[2, 2 * number]]
        assert (await other).outputs["y"].shape == (3, 50_000)
        client.close()

    asyncio.run(main())


def test_no_engine_is_an_answer(tmp_path: Path) -> None:
    with pytest.raises(ServingError) as raised:
        asyncio.run(AsyncClient.open(str(tmp_path / "nothing.sock")))
    assert raised.value.code == Code.UNAVAILABLE


def test_a_port_whose_engine_ends_fails_its_calls(tmp_path: Path) -> None:
    async def main(engine: NumpyEngine) -> None:
        client = await AsyncClient.open(engine.path)
        call = client.call("held", 1, "serving_default", {"x": floats([[1]])})
        await asyncio.to_thread(wait_for, lambda: (tmp_path / "begun").exists(), "it runs")
        engine.process.kill()
        with pytest.raises(ServingError) as raised:
            await asyncio.wait_for(call, PATIENCE)
        assert raised.value.code == Code.UNAVAILABLE
        assert client.closed

    with numpy_engine(tmp_path) as engine:
        engine.add("held")
        asyncio.run(main(engine))


def test_a_callback_may_call_again_or_hang_up(tmp_path: Path) -> None:
    """Whoever reads the answer runs it: neither may wait for the reader."""
    with numpy_engine(tmp_path) as engine:
        engine.add("double")
        engine.add("held")
        client = engine.connect()
        again: list[Any] = []

        def submit(model: str) -> Any:
            return client.submit(model, 1, "serving_default", {"x": floats([[1]])})

        first = submit("double")
        first.add_done_callback(lambda _: again.append(submit("double")))
        first.result(PATIENCE)
        wait_for(lambda: again, "it was called again")
        assert again[0].result(PATIENCE).outputs["y"].item() == 2
        # The engine ends, and the callback of the call that was lost tries another.
        lost = submit("held")
        wait_for(lambda: (tmp_path / "begun").exists(), "it runs")
        lost.add_done_callback(lambda _: again.append(submit("double")))
        lost.add_done_callback(lambda _: client.close())
        engine.process.kill()
        assert isinstance(lost.exception(PATIENCE), ServingError)
        wait_for(lambda: len(again) == 2, "it was called again")
        assert isinstance(again[1].exception(PATIENCE), ServingError)
        client.close()


def test_what_cannot_be_sent_is_the_callers_mistake(engine: NumpyEngine) -> None:
    for call in (engine.client.call, engine.client.submit):
        with pytest.raises(TypeError, match="cannot be sent"):
            call("double", 1, "serving_default", {"x": np.array(["2026"], "datetime64[Y]")})


def test_a_line_is_closed_when_nobody_has_it_any_more() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client = SyncClient(mine)
    del client, mine
    gc.collect()
    theirs.settimeout(PATIENCE)
    assert theirs.recv(1) == b""
    theirs.close()


LARGE = np.zeros((1 << 20, 1), np.float32)


@pytest.mark.parametrize("deadline", [3.6e11, 1e300, float("inf"), float("nan"), 2.0**64, 1e9])
def test_a_deadline_that_no_record_can_hold_is_none(deadline: float) -> None:
    sent: list[Outgoing] = []
    protocol = ClientProtocol(sent.append)
    protocol.send_call(object(), "m", 1, "s", {"x": LARGE}, deadline=deadline)
    assert len(protocol) == 1
    head = bytes(sent[-1].pieces[0])
    assert records.CALL_HEAD.unpack(head)[-1] == 0


class _Full(Exception):
    pass


def _fails(protocol: ClientProtocol, act: Any) -> None:
    """It fails, and leaves no call, no memory and nothing that waits for an answer."""
    with pytest.raises((TypeError, _Full)):
        act()
    assert len(protocol) == 0
    assert protocol.abandoned == 0
    assert not protocol.segments.lent


def test_a_call_that_cannot_be_sent_leaves_nothing_behind() -> None:
    full = False

    def put(record: Outgoing) -> None:
        for number in record.descriptors:
            os.close(number)
        if full:
            raise _Full

    protocol = ClientProtocol(put)
    deep = LARGE.reshape((1,) * 40 + (-1,))
    for _ in range(100):
        _fails(protocol, lambda: protocol.send_call(object(), "m", 1, "s", {"x": deep}))
        both = {"x": LARGE, "y": deep}
        _fails(protocol, lambda both=both: protocol.send_call(object(), "m", 1, "s", both))
        odd = {"x": LARGE, "y": np.array([object()])}
        _fails(protocol, lambda odd=odd: protocol.send_call(object(), "m", 1, "s", odd))
    full = True
    for _ in range(100):
        _fails(protocol, lambda: protocol.send_call(object(), "m", 1, "s", {"x": LARGE}))
        _fails(protocol, lambda: protocol.send_question(object(), {"text": "x" * 100_000}))
    full = False
    protocol.send_call(object(), "m", 1, "s", {"x": LARGE})
    assert len(protocol) == 1
    # All calls were put into the first segment, and all questions into the second.
    assert protocol.segments.take(LARGE.nbytes).number == 3


def test_what_was_given_up_counts_until_the_engine_is_done_with_it() -> None:
    protocol = ClientProtocol(lambda record: None)
    number = protocol.send_call(object(), "m", 1, "s", {"x": LARGE})
    assert protocol.abandoned == 0
    assert protocol.cancel(number)
    assert protocol.cancel(number)
    assert protocol.abandoned >= LARGE.nbytes
    reply = records.plain(records.FAILED, call=number, more=Code.CANCELLED)
    assert list(protocol.receive(Packet(reply, []))) == []
    assert protocol.abandoned == 0


def test_a_client_knows_by_its_type_that_an_engine_does_not_have_the_model(
    engine: NumpyEngine,
) -> None:
    with pytest.raises(NotServed, match="Servable not found"):
        engine.client.call("nobody", 1, "serving_default", {"x": floats([[1]])})
