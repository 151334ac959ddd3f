"""What one end asks, the other answers; nobody waits for one that has gone."""

import asyncio
import socket

import pytest

from sublet.errors import ServingError
from sublet.serving.frontend_link import AskTally, Counted, Done, Drain, Link, Message
from sublet.serving.metrics import Tally


async def _answer(question: Message) -> Message:
    if isinstance(question, Drain):
        await asyncio.sleep(question.seconds)
        return Done()
    return Counted(Tally({("m", 0): 3}))


async def _links() -> tuple[Link, Link]:
    ours, theirs = socket.socketpair()
    one = await Link.over(ours, _answer, lambda: None)
    return one, await Link.over(theirs, _answer, lambda: None)


def test_each_end_answers_what_the_other_asks_and_a_slow_answer_holds_up_no_other() -> None:
    async def ask() -> None:
        one, other = await _links()
        slow = asyncio.ensure_future(one.ask(Drain(0.05)))
        assert (await other.ask(AskTally())).tally == (await one.ask(AskTally())).tally
        assert not slow.done()
        assert await slow == Done()

    asyncio.run(ask())


def test_a_question_fails_when_the_other_end_goes() -> None:
    async def ask() -> None:
        one, other = await _links()
        asked = asyncio.ensure_future(one.ask(Drain(3600)))
        await asyncio.sleep(0)
        other.close()
        for question in (asked, one.ask(AskTally())):
            with pytest.raises(ServingError, match="is ending"):
                await question

    asyncio.run(ask())
