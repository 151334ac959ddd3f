"""Another user of the same machine."""

import encodings.idna  # noqa: F401  # Connecting loads it, and a stranger may not read it.
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
UID = GID = 65534

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as another user; run the tests as root"
)


def as_stranger(act: Callable[[], T]) -> T:
    """What `act` gives in a child that belongs to nobody. What it raises fails the test.

    The child is a fork: another user may not be able to run this interpreter. What `act` needs has
    to be imported before.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(GID, GID, GID)
            os.setresuid(UID, UID, UID)
            answer: Any = (True, act())
        except BaseException:
            answer = (False, traceback.format_exc())
        try:
            with open(theirs, "wb") as out:
                pickle.dump(answer, out)
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as back:
        data = back.read()
    os.waitpid(child, 0)
    good, value = pickle.loads(data)
    assert good, value
    return value  # type: ignore[no-any-return]  # It is what `act` gave.
