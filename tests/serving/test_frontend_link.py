"""What one end asks, the other answers; nobody waits for one that has gone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sublet.errors import ServingError
from sublet.serving.frontend_link import AskTally, Counted, Done, Drain, Link, Message
from sublet.serving.metrics import Tally


async def _answer(question: Message) -> Message:
    if isinstance(question, Drain):
        await asyncio.sleep(question.seconds)
        return Done()
    return Counted(Tally({("m", 0): 3}))


@asynccontextmanager
async def _links() -> AsyncIterator[tuple[Link, Link]]:
    ours, theirs = socket.socketpair()
    gone = asyncio.Event()
    one = await Link.over(ours, _answer, gone.set)
    other = await Link.over(theirs, _answer, lambda: None)
    yield one, other
    other.close()
    await gone.wait()


def test_each_end_answers_what_the_other_asks_and_a_slow_answer_holds_up_no_other() -> None:
    async def ask() -> None:
        async with _links() as (one, other):
            slow = asyncio.ensure_future(one.ask(Drain(0.05)))
            assert (await other.ask(AskTally())).tally == (await one.ask(AskTally())).tally
            assert not slow.done()
            assert await slow == Done()

    asyncio.run(ask())


def test_a_question_fails_when_the_other_end_goes() -> None:
    async def ask() -> None:
        async with _links() as (one, other):
            asked = asyncio.ensure_future(one.ask(Drain(3600)))
            await asyncio.sleep(0)
            other.close()
            for question in (asked, one.ask(AskTally())):
                with pytest.raises(ServingError, match="is ending"):
                    await question

    asyncio.run(ask())
