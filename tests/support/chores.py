"""Functions for pools of several makes, in a module that all their workers can import."""

import os
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import sublet

greeting = ""


def square(number: int) -> int:
    return number * number


def power(base: int, exponent: int = 2, memory: str = "") -> str:
    return f"{base**exponent}{memory}"


def pid(_: object = None) -> int:
    return os.getpid()


def refuse(number: int) -> int:
    """Raise for even numbers."""
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


def wait_for_file(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return path


def die(_: object = None) -> None:
    os._exit(7)


def greet(text: str) -> None:
    global greeting
    greeting = text


def greeted(name: str) -> str:
    return f"{greeting}, {name}"


def refuse_to_start() -> None:
    raise RuntimeError("no data here")


def note(kept: MutableMapping[int, int], number: int) -> None:
    kept[number] = number * number


def say(path: str, lines: int) -> int:
    """Write lines to the terminal, and then wait."""
    for number in range(lines):
        os.write(1, f"line {number} of a worker\n".encode())
    Path(path).touch()
    return lines


def uses_tensorflow() -> bool:
    return "tensorflow" in sys.modules


@sublet.task(memory="64MiB", max_workers=2)
def countdown(number: int, end: int = 0) -> tuple[int, int]:
    """Count down in one worker, by calling itself."""
    return countdown(number - 1, end) if number > end else (number, os.getpid())


@sublet.task
def describe(value: Any) -> str:
    """A `sublet.task` without options."""
    return f"{value!r}"
