"""How a call may end: the codes that gRPC, TensorFlow Serving and the channel share."""

from enum import IntEnum

from sublet.errors import ServingError


class Code(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class QueueFull(ServingError):
    """The model's queue has no place for the call: this concerns all calls of the model."""

    def __init__(self, message: str, code: int = Code.UNAVAILABLE) -> None:
        super().__init__(message, code)


class NotServed(ServingError):
    """This engine does not have the model: nothing has run, and another engine may have it."""

    def __init__(self, message: str, code: int = Code.NOT_FOUND) -> None:
        super().__init__(message, code)


REASONS: tuple[type[ServingError], ...] = (ServingError, QueueFull, NotServed)
"""Errors that clients tell apart, by the number that travels with them."""


def invalid_argument(message: str) -> ServingError:
    """The error for a request that is wrong."""
    return ServingError(message, Code.INVALID_ARGUMENT)
