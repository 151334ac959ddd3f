"""What is said when TensorFlow refuses a model or a call."""

import pytest

from sublet.channel.codes import Code
from sublet.engine import failures
from sublet.errors import ServingError


class InvalidArgumentError(Exception):
    """As TensorFlow's errors are seen from outside."""

    error_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFoundError(InvalidArgumentError):
    error_code = 5


class ResourceExhaustedError(InvalidArgumentError):
    error_code = 8


OOM = "OOM when allocating tensor with shape[4,1024] and type float on CPU:0 by allocator cpu"


def test_an_error_of_a_call_keeps_its_code_and_loses_the_hints_for_programmers() -> None:
    answer = failures.explained(InvalidArgumentError("Bad shape.\nHint: ask for more\nOp: x"))
    assert (answer.code, answer.message) == (Code.INVALID_ARGUMENT, "Bad shape.")


def test_a_long_text_is_cut() -> None:
    assert len(failures.explained(InvalidArgumentError("x" * 10**6)).message) < 2000


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (NotFoundError("Op type not registered 'Mine' in binary"), Code.UNIMPLEMENTED, "Mine"),
        (NotFoundError("variables.data: No such file."), Code.DATA_LOSS, "whole directory again"),
        (InvalidArgumentError("Nonsense."), Code.INVALID_ARGUMENT, "m/1 cannot be loaded"),
        (RuntimeError("odd"), Code.INTERNAL, "m/1 cannot be loaded"),
        (MemoryError(), Code.RESOURCE_EXHAUSTED, "MemoryError"),
    ],
)
def test_a_load_that_fails_is_explained(error: Exception, code: Code, part: str) -> None:
    answer = failures.explained(error, "m/1")
    assert answer.code == code
    assert part in answer.message


def test_where_in_the_graph_a_load_failed_is_not_said_to_whoever_serves_the_model() -> None:
    error = NotFoundError("Read less bytes than requested\n\t [[{{node save/RestoreV2}}]]")
    said = failures.explained(error, "m/1").message
    assert said.startswith("m/1 is incomplete or damaged: Read less bytes than requested. Copy")


def test_memory_that_is_out_is_told_from_a_server_that_is_busy() -> None:
    assert failures.out_of_memory(ResourceExhaustedError(OOM))
    assert not failures.out_of_memory(ResourceExhaustedError("too many requests"))
    assert failures.asked(ResourceExhaustedError(OOM)) == 4 * 1024 * 4


def test_an_answer_stays_as_it_is() -> None:
    answer = ServingError("no", Code.ABORTED)
    assert failures.explained(answer, "m/1") is answer
