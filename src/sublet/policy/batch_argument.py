"""The batch size among a program's arguments.

Owns the spellings that count as one. Never guesses: an option that names no batch, or a value that
is no whole number, is an argument like any other.
"""

import re

_NAMES = {"b", "bs", "batch", "batchsize"} | {
    f"{which}batchsize" for which in ("train", "training", "global", "micro", "mini", "perdevice")
}
_JOINED = re.compile(r"-b([1-9]\d{0,8})")
_WHOLE = re.compile(r"[1-9]\d{0,8}")
_PLACE = "\0"
"""Stands where the number was. No argument can hold it: a zero byte ends an argument."""


def read_batch(args: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
    """The batch size that the arguments name, and the arguments with its place held open.

    Two runs of the same shape differ in the batch size and in nothing else. Where several options
    name one, the last counts, as it does for most programs.
    """
    found: str | None = None
    shape = list(args)
    for place, word in enumerate(args):
        name, equals, value = word.partition("=")
        following = args[place + 1] if place + 1 < len(args) else ""
        if joined := _JOINED.fullmatch(word):
            found, shape[place] = joined[1], f"-b{_PLACE}"
        elif equals and _is_batch(name) and _WHOLE.fullmatch(value):
            found, shape[place] = value, f"{name}={_PLACE}"
        elif word.startswith("-") and _is_batch(word) and _WHOLE.fullmatch(following):
            found, shape[place + 1] = following, _PLACE
    return (None if found is None else int(found)), tuple(shape)


def _is_batch(option: str) -> bool:
    """`--batch-size`, `--train_batch_size`, `-b`, or a setting such as `data.batch_size`."""
    name = option.lstrip("-").rpartition(".")[2]
    return re.sub(r"[-_]", "", name).lower() in _NAMES
