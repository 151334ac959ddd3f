"""What to say when TensorFlow refuses a model or a call.

Owns the step from TensorFlow's exceptions to answers with a code and advice. Its error numbers are
gRPC's, so the code of an error that says nothing else is kept.
"""

import re

from sublet.channel.codes import Code, NotServed
from sublet.engine import op_libraries
from sublet.errors import ServingError
from sublet.inside import oom

_LONGEST = 1000
_NODE = re.compile(r"\s*\[\[\{\{.*?\}\}\]\]", re.DOTALL)
"""Where in the graph it was: of use to whoever wrote the model, not to whoever serves it."""
_NO_OPERATION = re.compile(r"Op type not registered '([^']*)'")


def explained(error: BaseException, path: str = "") -> ServingError:
    """The answer to a call, or to the loading of `path`."""
    if isinstance(error, ServingError):
        return error
    text = _text(error)
    if out_of_memory(error):
        return ServingError(f"Out of memory: {text}", Code.RESOURCE_EXHAUSTED)
    code = _code(error)
    if not path:
        return ServingError(text, code)
    missing = _NO_OPERATION.search(text)
    if missing is not None:
        package = op_libraries.package_of(missing[1])
        advice = (
            f"It is in {package}: install it, and start the server with --load_library {package}."
            if package
            else "Name the package or library that has it with --load_library, or export the model "
            "without it."
        )
        return ServingError(
            f"{path} uses the operation {missing[1]}, which this TensorFlow does not have. "
            f"{advice}",
            Code.UNIMPLEMENTED,
        )
    text = _NODE.sub("", text).rstrip(".")
    if code in (Code.NOT_FOUND, Code.DATA_LOSS, Code.OUT_OF_RANGE):
        return ServingError(
            f"{path} is incomplete or damaged: {text}. Copy the whole directory again.",
            Code.DATA_LOSS,
        )
    return ServingError(f"{path} cannot be loaded: {text}.", code)


def not_found(model: str, version: int | None) -> ServingError:
    """No version, or not this one: as TensorFlow Serving says it."""
    wanted = f"Latest({model})" if version is None else f"Specific({model}, {version})"
    return NotServed(f"Servable not found for request: {wanted}")


def interrupted() -> ServingError:
    """The answer to a call that was interrupted because it ran too long."""
    return ServingError(
        "The call took too long while others waited, and was interrupted. Send less at a time, or "
        "start the server with a longer --run_timeout.",
        Code.DEADLINE_EXCEEDED,
    )


def unsent(error: BaseException) -> ServingError:
    """The answer to a call whose outputs are not tensors, or too large to send."""
    return ServingError(f"What the model gave cannot be sent: {_text(error)}", Code.INTERNAL)


def out_of_memory(error: BaseException) -> bool:
    """Whether it was TensorFlow's pool that had no more to give."""
    return hasattr(error, "error_code") and oom.is_oom(_text(error))


def exhausted(error: BaseException) -> bool:
    """Whether it was that, or the answer that says so."""
    return out_of_memory(error) or getattr(error, "code", None) == Code.RESOURCE_EXHAUSTED


def asked(error: BaseException) -> int:
    """Bytes of the allocation that failed, 0 where it is not said."""
    return oom.asked(_text(error))


def _code(error: BaseException) -> Code:
    number = getattr(error, "error_code", None)
    if isinstance(number, int) and number in Code._value2member_map_:
        return Code(number)
    if isinstance(error, MemoryError):
        return Code.RESOURCE_EXHAUSTED
    if isinstance(error, (TypeError, ValueError)):
        return Code.INVALID_ARGUMENT
    return Code.INTERNAL


def _text(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error) or type(error).__name__
    # TensorFlow adds where in the graph it was, and how to ask it for more.
    text = text.partition("\n\nOriginal stack trace")[0].partition("\nHint:")[0].strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
