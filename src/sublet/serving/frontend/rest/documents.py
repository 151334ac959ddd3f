"""JSON documents as TensorFlow Serving (RapidJSON) reads them: what is accepted, and the texts.

The fast parser takes what the standard says. What it refuses is read again by the standard
library's, because `NaN`, `Infinity` and `-Infinity` are numbers here; a number that no double can
hold is refused by both. Of two equal keys the first counts, as in RapidJSON.
"""

import json
import re
from collections.abc import Iterator
from math import isinf
from typing import Any

import orjson

from sublet.channel.codes import invalid_argument
from sublet.errors import ServingError
from sublet.serving.frontend.rest.messages import Body

_EXPLAINED = 2**18
"""Bytes of a broken document that are read a second time, only to say what is wrong with it."""
_SHOWN = 1000  # Characters of a value that an error repeats.

_KEYS = {
    key: f'"{key}"'.encode()
    for key in ("instances", "inputs", "signature_name", "examples", "context", "outputs")
}
"""What requests are made of; other keys are ignored, twice or not."""
_TEXTS = (
    ("Expecting property name", "Missing a name for object member."),
    ("Illegal trailing comma before end of object", "Missing a name for object member."),
    ("Expecting ':'", "Missing a colon after a name of object member."),
    ("Extra data", "The document root must not be followed by other values."),
    ("Unterminated string", "Missing a closing quotation mark in string."),
    ("Invalid control character", "Invalid encoding in string."),
    ("Invalid \\escape", "Invalid escape character in string."),
    ("Invalid \\uXXXX escape", "Incorrect hex digit after \\u escape in string."),
)
_COMMA = {
    "{": "Missing a comma or } after an object member.",
    "[": "Missing a comma or ] after an array element.",
}
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)


def parse(body: Body) -> dict[str, Any]:
    """Parse a request's body, which is a JSON object."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as failed:
        document = _parse_again(body, failed)
    if type(document) is not dict:
        raise invalid_argument(f"JSON Value: {show(document)} Is not object")
    if len(document) > 1:
        for key, quoted in _KEYS.items():
            if key in document and body.count(quoted) > 1:
                return _first_of_each(body, document)
    return document


def _parse_again(body: Body, failed: orjson.JSONDecodeError) -> Any:
    if not body.strip():
        if not body:
            raise invalid_argument("JSON Parse error: The document is empty")
        raise _broken("The document is empty.", len(body))
    if "depth" in failed.msg:
        raise _broken("The document is nested too deeply.", failed.pos)
    if "infinity" in failed.msg:
        raise _broken("Number too big to be stored in double.", failed.pos)
    odd = b"NaN" in body or b"Infinity" in body
    if not odd and len(body) > _EXPLAINED:
        raise _broken("Invalid value.", failed.pos)
    try:
        return json.loads(body.decode(), parse_float=_float, parse_int=_int)
    except UnicodeDecodeError as bad:
        raise _broken("Invalid encoding in string.", bad.start) from None
    except json.JSONDecodeError as bad:
        # RapidJSON counts bytes, and notices that a string does not end where the document does.
        at = len(bad.doc) if bad.msg.startswith("Unterminated") else bad.pos
        raise _broken(_text(bad), len(bad.doc[:at].encode())) from None
    except RecursionError:
        raise _broken("The document is nested too deeply.", failed.pos) from None
    except ValueError:
        raise _broken("Number too big to be stored in double.", failed.pos) from None


def _first_of_each(body: Body, document: dict[str, Any]) -> dict[str, Any]:
    """Read again if the document really has a key twice; a value may just look like a key."""
    try:
        found = json.loads(body.decode(), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    except RecursionError:
        return document
    assert type(found) is dict
    return found


def _float(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(text)
    return number


def _int(text: str) -> int | float:
    """Beyond 64 bits a whole number is a float, in either parser."""
    if len(text) < 19:
        return int(text)
    number = _float(text)
    return int(text) if -(2**63) <= number <= 2**64 and _fits(int(text)) else number


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**64


def _broken(text: str, offset: int) -> ServingError:
    return invalid_argument(f"JSON Parse error: {text} at offset: {offset}")


def _text(failed: json.JSONDecodeError) -> str:
    for ours, theirs in _TEXTS:
        if failed.msg.startswith(ours):
            return theirs
    if "',' delimiter" in failed.msg:
        open_ones: list[str] = []
        for token in _TOKENS.findall(failed.doc[: failed.pos]):
            if token in ("[", "{"):
                open_ones.append(token)
            elif token in ("]", "}"):
                open_ones.pop()
        return _COMMA[open_ones[-1]] if open_ones else "Invalid value."
    return "Invalid value."


def kind(value: Any) -> str:
    """RapidJSON's name for what a value is."""
    if value is True:
        return "True"
    if value is False:
        return "False"
    return _KINDS[type(value)]


_KINDS = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}


def show(value: Any) -> str:
    """A value as an error repeats it: spread over lines as RapidJSON does, and cut when long."""
    pieces: list[str] = []
    length = 0
    for piece in _pieces(value, "\n"):
        pieces.append(piece)
        length += len(piece)
        if length > _SHOWN:
            return "".join(pieces)[:_SHOWN] + "..."
    return "".join(pieces)


def _pieces(value: Any, line: str) -> Iterator[str]:
    if type(value) is list and value:
        inner = line + "    "
        for index, item in enumerate(value):
            yield ("," if index else "[") + inner
            yield from _pieces(item, inner)
        yield line + "]"
    elif type(value) is dict and value:
        inner = line + "    "
        for index, (name, item) in enumerate(value.items()):
            yield ("," if index else "{") + inner + json.dumps(name, ensure_ascii=False) + ": "
            yield from _pieces(item, inner)
        yield line + "}"
    elif type(value) is str:
        yield json.dumps(value[: 2 * _SHOWN], ensure_ascii=False)
    else:
        yield json.dumps(value)
