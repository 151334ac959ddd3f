"""Who is refused hears of it soon, and together with others."""

import asyncio

from sublet.serving.frontend.backpressure import DelayedRefusals


def test_those_of_one_moment_are_told_together() -> None:
    async def story() -> None:
        moments = DelayedRefusals()
        first, left, last = (moments.next() for _ in range(3))
        left.cancel()  # Its client has gone, which is nothing to the others.
        await first
        assert last.done()
        later = moments.next()
        assert not later.done()
        await later

    asyncio.run(story())
