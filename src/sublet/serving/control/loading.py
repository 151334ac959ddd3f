"""How a version that an engine knows comes into its memory.

Engines load one version at a time; one that takes long goes on beside the others.
"""

import asyncio
from collections.abc import Callable, Mapping

from sublet.serving.catalogue import Signature
from sublet.serving.control import savedmodel
from sublet.serving.control.blame import Key
from sublet.serving.control.engine_protocol import Host

_SLOW = 5.0
"""Seconds after which others are loaded beside a version that takes longer, or never ends."""


async def deliver(
    host: Host, key: Key, path: str, lazily: bool, tell: Callable[[str], None]
) -> Mapping[str, Signature]:
    """Have it loaded; its signatures. If it may be done `lazily` and memory is full, it is only
    looked into: whoever calls it first has it loaded."""
    async with host.turn:
        if lazily and await host.full():
            seen = await asyncio.to_thread(savedmodel.signatures, path)
            if seen:
                return seen
        loading = await _begin(host, key)
    if not loading.done():
        tell(f"{key[0]} version {key[1]} takes long to load; others go on.")
    return await loading


async def deliver_again(host: Host, key: Key) -> bool:
    """Have it loaded in an engine that took another's place; False if there is no room left."""
    async with host.turn:
        if await host.full():
            return False
        loading = await _begin(host, key)
    await loading
    return True


async def _begin(host: Host, key: Key) -> asyncio.Future[Mapping[str, Signature]]:
    """Have it loaded: it is, or has failed, or takes long and goes on."""
    loading = asyncio.ensure_future(host.load(*key))
    try:
        await asyncio.wait([loading], timeout=_SLOW)
    except asyncio.CancelledError:
        loading.cancel()
        raise
    return loading
