"""What a model's owner can ask of the engine, read and checked once."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import invalid_argument
from sublet.errors import ServingError

LARGEST = 64
"""Rows of a batch where nothing is said: beyond it a small model gains little."""

OPTIONS = frozenset(
    (
        "allowed_batch_sizes", "alone", "batch_timeout_micros", "batchable", "follow_links",
        "hold_seconds", "idle_seconds", "latency_target_ms", "libraries", "load_timeout",
        "max_batch_size",
        "max_enqueued_batches", "pad_variable_length_inputs", "pin", "prefer_tflite", "priority",
        "stateful", "tags",
        "warm_up", "warm_up_rows", "weight",
    )
)  # fmt: skip
"""All that a model can be loaded with, here and in the store."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How the requests of one model are batched and scheduled."""

    largest: int = LARGEST  # Rows of a batch of several requests.
    wait: float = 0.0
    """Seconds that a batch waits to be full; 0 takes what is there."""
    sizes: tuple[int, ...] = ()
    """Rows that a batch may have: it is filled up to the next. None: any number."""
    enqueued: int | None = None
    """Batches that may wait; None bounds the time that a call would wait instead."""
    weight: float = 1.0  # Its share of the device where models compete.
    priority: int = 0
    """Models with a higher one go first, whatever the weights."""
    pad_inputs: bool = False
    """Whether inputs of different lengths are filled up to be one batch."""
    target: float | None = None
    """Seconds that a request should take at most, waiting included."""
    fixed: bool = False
    """Whether `largest` holds for pieces of a large request, too."""
    alone: bool = False  # Whether each request is a batch of its own.

    @classmethod
    def read(cls, options: Mapping[str, Any], few_shapes: bool = False) -> "Options":
        """Read the options of a model; names that are not ours are left to others. `few_shapes`:
        by default batches are filled up to powers of two, as a GPU's libraries look for the best
        algorithm anew for every shape; a processor gains nothing."""
        largest = _whole(options, "max_batch_size", LARGEST)
        sizes = options.get("allowed_batch_sizes") or ()
        listed = isinstance(sizes, (list, tuple))
        if not listed or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise _wrong("allowed_batch_sizes", "is a list of whole numbers above 0")
        if sizes:
            if list(sizes) != sorted(set(sizes)):
                raise _wrong("allowed_batch_sizes", "must be in rising order")
            if "max_batch_size" in options and sizes[-1] != largest:
                raise _wrong("allowed_batch_sizes", "must end with max_batch_size")
            largest = sizes[-1]
        enqueued = None
        if "max_enqueued_batches" in options:
            enqueued = _whole(options, "max_enqueued_batches", 1)
        _check_others(options)
        target = options.get("latency_target_ms")
        return cls(
            largest,
            _number(options, "batch_timeout_micros", 0.0, zero=True) * 1e-6,
            tuple(sizes) or (powers(largest) if few_shapes else ()),
            enqueued,
            _number(options, "weight", 1.0),
            options.get("priority", 0),
            bool(options.get("pad_variable_length_inputs", False)),
            None if target is None else _number(options, "latency_target_ms", 0.0) * 1e-3,
            bool(sizes) or "max_batch_size" in options,
            bool(options.get("alone", False)) or largest == 1,
        )

    def padded(self, rows: int) -> int:
        """The size that a batch of this many rows is padded to."""
        return next((size for size in self.sizes if size >= rows), rows)


def powers(largest: int) -> tuple[int, ...]:
    """1, 2, 4 … and the largest: few shapes, at most twice the work."""
    return tuple(dict.fromkeys([*(1 << n for n in range(largest.bit_length())), largest]))


def _check_others(options: Mapping[str, Any]) -> None:
    """Check the options that the store reads."""
    for name in ("hold_seconds", "idle_seconds", "load_timeout"):
        _number(options, name, 0.0, zero=True)
    for name in ("alone", "batchable", "follow_links", "pad_variable_length_inputs", "pin",
                 "prefer_tflite", "stateful", "warm_up"):  # fmt: skip
        if options.get(name) not in (None, True, False):
            raise _wrong(name, "is True or False")
    if type(options.get("priority", 0)) is not int:
        raise _wrong("priority", "is a whole number")
    tags = options.get("tags") or ()
    if not isinstance(tags, (list, tuple)) or not all(isinstance(tag, str) for tag in tags):
        raise _wrong("tags", "is a list of names")
    libraries = options.get("libraries") or ()
    if not isinstance(libraries, (list, tuple)) or not all(isinstance(n, str) for n in libraries):
        raise _wrong("libraries", "is a list of paths and packages")
    rows = options.get("warm_up_rows") or ()
    if not isinstance(rows, (list, tuple)) or not all(type(n) is int and n > 0 for n in rows):
        raise _wrong("warm_up_rows", "is a list of whole numbers above 0")


def _whole(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(name, "is a whole number above 0")
    return value


def _number(options: Mapping[str, Any], name: str, default: float, zero: bool = False) -> float:
    value = options.get(name, default)
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not (0 < value < float("inf") or (zero and value == 0))
    ):
        raise _wrong(name, f"is a number {'of at least' if zero else 'above'} 0")
    return float(value)


def _wrong(name: str, rule: str) -> ServingError:
    return invalid_argument(f"The option {name} {rule}.")
