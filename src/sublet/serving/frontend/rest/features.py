"""The `examples` of a classify or regress request, each as a serialized tf.Example."""

from typing import Any

from sublet.serving.frontend import examples
from sublet.serving.frontend.rest.documents import kind, show, wrong
from sublet.serving.frontend.rest.values import bytes_of, is_b64, is_lossless


def rows(document: dict[str, Any]) -> list[bytes]:
    """One example per row; the `context`, if any, is part of each."""
    context = b""
    if "context" in document:
        context = _example(document["context"])
    if "examples" not in document:
        raise wrong(
            f"JSON Value: {show(document)} When method is classify, key 'examples' is expected and "
            "was not found"
        )
    given = document["examples"]
    if type(given) is not list:
        raise wrong(f"JSON Value: {show(document)} Expecting 'examples' value to be an list/array")
    if not given:
        raise wrong(f"JSON Value: {show(document)} 'examples' value is an empty array")
    return examples.with_context(context, [_example(each) for each in given])


def _example(value: Any) -> bytes:
    if type(value) is not dict:
        raise wrong(f"Example must be JSON object but got JSON {kind(value)}")
    return examples.serialize({name: _feature(name, content) for name, content in value.items()})


def _feature(name: str, content: Any) -> list[Any]:
    found: list[Any] = []
    for value in content if type(content) is list else [content]:
        item = _item(name, value)
        if found and type(found[0]) is not type(item):
            expected = {bytes: "bytes", float: "float", int: "int64"}[type(found[0])]
            raise wrong(f"Unexpected element type in feature: {name} expecting type: {expected}")
        found.append(item)
    return found


def _item(name: str, value: Any) -> bytes | int | float:
    if type(value) is bool:
        return int(value)
    if type(value) is str:
        return value.encode("utf-8", "replace")
    if type(value) is int:
        if value >= 2**63:
            raise wrong(f"Feature: {name} has uint64 element. Only int64 is supported.")
        return value
    if type(value) is float:
        if not is_lossless(value):
            raise wrong(
                f"Cannot convert JSON value: {show(value)} to float without loss of precision."
            )
        return value
    if is_b64(value):
        return bytes_of(value)
    raise wrong(f"Feature: {name} has element with unexpected JSON type: {kind(value)}")
