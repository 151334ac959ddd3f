"""Regions of shared memory in which clients on this machine leave inputs and find outputs.

As in Triton, a region is a part of a file below /dev/shm that a client names. So that nobody reads
or writes another user's memory with the server's rights:

    a client is known by its user (`Peer.user`), or has no regions
    a file must belong to that user; one that is another's is as one that is not there
    a user sees and uses the regions that this user has registered, and no others

Contents are read and written as those of files, never mapped: a client that makes its file shorter
gets an error, where a mapping would end this process. And what a model reads does not change
under its hands.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sublet.channel.codes import Code, invalid_argument
from sublet.errors import ServingError

_ROOT = "/dev/shm"
_MOST = 1024  # Of all users; each holds a descriptor.
_MOST_OF_ONE = 256
_LARGEST = 2**31 - 1  # Bytes of one tensor, as in a message of gRPC.
_LONGEST_NAME = 255
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Region(NamedTuple):
    name: str
    key: str
    offset: int
    size: int
    file: int  # Its descriptor.


class Place(NamedTuple):
    """The region of shared memory that an output is written to."""

    region: Region
    at: int  # In the file.
    size: int

    def parameters(self) -> dict[str, Any]:
        """What the answer says of it."""
        found: dict[str, Any] = {
            "shared_memory_region": self.region.name,
            "shared_memory_byte_size": self.size,
        }
        if self.at != self.region.offset:
            found["shared_memory_offset"] = self.at - self.region.offset
        return found

    def write(self, name: str, data: bytes) -> "Place":
        """Put an output there; how much of the place it has taken. Raises ServingError."""
        if len(data) > self.size:
            raise invalid_argument(
                f"Output {name} has {len(data)} bytes, and its place in the shared memory region "
                f"{self.region.name} {self.size}."
            )
        _check_size(self.region.file, self.at + len(data), self.region.name)
        view, at = memoryview(data), self.at
        try:
            while view:
                count = os.pwrite(self.region.file, view, at)
                view, at = view[count:], at + count
        except OSError as wrong:
            raise _unusable(self.region.name, wrong) from None
        return self._replace(size=len(data))


class Regions:
    """All regions of a front end. Everything raises ServingError."""

    def __init__(self) -> None:
        self._regions: dict[int, dict[str, Region]] = {}  # By user, and by name.

    def register(self, user: int, name: str, key: str, offset: int, size: int) -> None:
        own = self._regions.get(user, {})
        if name in own:
            raise ServingError(
                f"There is a shared memory region {name} already. Unregister it first.",
                Code.ALREADY_EXISTS,
            )
        if not 0 < len(name) <= _LONGEST_NAME or offset < 0 or size <= 0:
            raise invalid_argument("A region has a name, an offset, and a size above 0.")
        if len(own) >= _MOST_OF_ONE or sum(map(len, self._regions.values())) >= _MOST:
            raise ServingError(
                "There are too many shared memory regions. Unregister some.",
                Code.RESOURCE_EXHAUSTED,
            )
        file = _open(user, key)
        try:
            _check_size(file, offset + size, name)
        except ServingError:
            os.close(file)
            raise
        self._regions.setdefault(user, {})[name] = Region(name, key, offset, size, file)

    def unregister(self, user: int, name: str) -> None:
        """Forget a region, or all of this user if it has no name. One that is not there is as
        one that was forgotten."""
        own = self._regions.get(user, {})
        for one in [name] if name else list(own):
            if (region := own.pop(one, None)) is not None:
                os.close(region.file)
        if not own:
            self._regions.pop(user, None)

    def registered(self, user: int, name: str) -> list[dict[str, Any]]:
        """What is known of a region, or of all of this user."""
        own = self._regions.get(user, {})
        found = [self.find(user, name)] if name else list(own.values())
        return [
            {"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.size}
            for one in found
        ]

    def find(self, user: int, name: str) -> Region:
        region = self._regions.get(user, {}).get(name)
        if region is None:
            raise ServingError(
                f"There is no shared memory region {name[:_LONGEST_NAME]} of yours. Register it.",
                Code.NOT_FOUND,
            )
        return region


class ClientMemory:
    """The regions as one client sees them; `regions` is None if the server has none."""

    def __init__(self, regions: Regions | None, user: int | None) -> None:
        self._regions = regions
        self._user = user

    def regions(self) -> tuple[Regions, int]:
        """All regions, and whose this client may use. Raises ServingError if it may use none."""
        if self._regions is None:
            raise ServingError(
                "Shared memory regions are not taken. Start the server with --allow_shared_memory, "
                "send the tensor, or use sublet.connect.",
                Code.UNIMPLEMENTED,
            )
        if self._user is None:
            raise ServingError(
                "Shared memory regions are for programs on this machine whose user is known.",
                Code.PERMISSION_DENIED,
            )
        return self._regions, self._user

    def place(self, parameters: Mapping[str, Any]) -> Place | None:
        """The place that an input or an output names; None if it names none."""
        name = parameters.get("shared_memory_region")
        if name is None:
            return None
        regions, user = self.regions()
        if type(name) is not str:
            raise invalid_argument("The parameter shared_memory_region is a string.")
        region = regions.find(user, name)
        offset = parameters.get("shared_memory_offset", 0)
        size = parameters.get("shared_memory_byte_size")
        if type(offset) is not int or type(size) is not int:
            raise invalid_argument(
                "The parameters shared_memory_byte_size and shared_memory_offset are numbers."
            )
        if not (offset >= 0 and 0 < size <= _LARGEST and offset + size <= region.size):
            raise invalid_argument(
                f"{size} bytes at {offset} do not lie in the shared memory region {name}, which "
                f"has {region.size}."
            )
        return Place(region, region.offset + offset, size)

    def read(
        self, parameters: Mapping[str, Any], memory: Callable[[int], memoryview]
    ) -> memoryview | None:
        """The contents of an input in a region; None if it names none. `memory` gives room."""
        place = self.place(parameters)
        if place is None:
            return None
        data = memory(place.size)[: place.size]
        left, at = data, place.at
        try:
            while left:
                count = os.preadv(place.region.file, [left], at)
                if not count:
                    raise _too_short(place.region.name, at + len(left), at)
                left, at = left[count:], at + count
        except OSError as wrong:
            raise _unusable(place.region.name, wrong) from None
        return data


def _open(user: int, key: str) -> int:
    """The file that a client calls so. Whether it is not there or another's is not said."""
    name = key.removeprefix("/")
    if name and len(name) <= _LONGEST_NAME and not {"/", "\0"} & set(name):
        with contextlib.suppress(OSError, UnicodeEncodeError):
            file = os.open(f"{_ROOT}/{name}", _FLAGS)
            facts = os.fstat(file)
            if stat.S_ISREG(facts.st_mode) and facts.st_uid == user:
                return file
            os.close(file)
    raise ServingError(
        f"There is no shared memory {key[:_LONGEST_NAME]} of yours that the server may use.",
        Code.NOT_FOUND,
    )


def _check_size(file: int, end: int, name: str) -> None:
    size = os.fstat(file).st_size
    if end > size:
        raise _too_short(name, end, size)


def _too_short(name: str, end: int, size: int) -> ServingError:
    return invalid_argument(
        f"The shared memory region {name} would end at {end}, and its memory has {size} bytes."
    )


def _unusable(name: str, wrong: OSError) -> ServingError:
    return ServingError(
        f"The shared memory region {name} cannot be used: {wrong.strerror}.",
        Code.FAILED_PRECONDITION,
    )
