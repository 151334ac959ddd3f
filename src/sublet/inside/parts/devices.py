"""Devices for parts: which there are, and how much they hold.

Each GPU has a pool of memory of its own. All logical devices of the CPU share one: parts on them
compute side by side, and take the memory of one device together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..current_lease import current
from ..training.refused import Refused

_NAME = re.compile(r"/?(?:device:)?(cpu|gpu):?(\d+)", re.IGNORECASE)
_NAMED = 4
_SETTING = (
    'tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], '
    "[tf.config.LogicalDeviceConfiguration()] * {})"
)


def chosen(parts: int | None, names: Sequence[str] | None) -> list[str]:
    """The devices for the parts: those that were named, else GPUs, else logical ones of the CPU.
    Logical CPUs are made if there are not enough, and TensorFlow has not started."""
    if parts is not None and (not isinstance(parts, int) or isinstance(parts, bool) or parts < 2):
        raise Refused(
            f"parts is {parts!r}.", "A split model has at least 2; one part is the model itself."
        )
    if names is None:
        gpus = _count("GPU")
        count = parts or max(gpus, 2)
        if 0 < gpus < count:
            raise Refused(
                f"{count} parts need as many devices; TensorFlow has {gpus} of the kind GPU.",
                f"`sublet run --gpus {count}` leases as many. Or name them: "
                'devices=["GPU:0", "CPU:0"].',
            )
        names = [f"{'GPU' if gpus else 'CPU'}:{number}" for number in range(count)]
    elif isinstance(names, str):
        raise Refused(f"devices is {names!r}.", f"Name several in a list: [{names!r}, …].")
    wanted = [_normal(name) for name in names]
    if len(set(wanted)) < len(wanted):
        raise Refused(f"devices {wanted} names one twice.", "Each part has its own.")
    if len(wanted) < max(parts or 2, 2):
        raise Refused(
            f"{parts or 2} parts need as many devices; {len(wanted)} named.", "Name more of them."
        )
    wanted = wanted[: parts or len(wanted)]
    _make_logical(wanted)
    missing = [name for name in wanted if int(name[4:]) >= _count(name[:3])]
    if missing:
        raise Refused(*_why_missing(missing, len(wanted)))
    return wanted


def limit(name: str) -> int | None:
    """The most bytes that TensorFlow may use of the device in this process; None if nothing is
    known."""
    lease = current()
    if lease is None or lease.on_gpu != name.startswith("GPU"):
        return None
    number = int(name[4:]) if lease.on_gpu else 0
    if number >= len(lease.cards):
        return None
    return max(lease.cards[number].ceiling, lease.most)


def peak(name: str) -> int | None:
    """The most bytes that were in use of a GPU so far; None for the CPU, whose logical devices
    share one pool."""
    import tensorflow as tf

    if not name.startswith("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info(name)["peak"])


def started() -> bool:
    """Whether TensorFlow's runtime runs, and its devices stay as they are."""
    from tensorflow.python.eager import context

    return bool(context.context()._initialized)


def _normal(name: Any) -> str:
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise Refused(
            f"{name!r} is no name of a device.", 'They are called "CPU:0", "CPU:1", "GPU:0" …'
        )
    return f"{found[1].upper()}:{int(found[2])}"


def _count(kind: str) -> int:
    """How many devices of the kind TensorFlow has, or would have if it started now."""
    import tensorflow as tf

    if started():
        return len(tf.config.list_logical_devices(kind))
    return sum(
        len(tf.config.get_logical_device_configuration(one) or [one])
        for one in tf.config.get_visible_devices(kind)
    )


def _make_logical(wanted: Sequence[str]) -> None:
    import tensorflow as tf

    count = 1 + max((int(name[4:]) for name in wanted if name.startswith("CPU")), default=0)
    if not started() and _count("CPU") < count:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )


def _why_missing(missing: Sequence[str], parts: int) -> tuple[str, str]:
    there = [f"{kind}:{number}" for kind in ("CPU", "GPU") for number in range(_count(kind))]
    named = ", ".join(missing[:_NAMED]) + (" …" if len(missing) > _NAMED else "")
    found = f"There is no device {named} here; there are {', '.join(there)}."
    if any(name.startswith("GPU") for name in missing):
        return found, f"`sublet run --gpus {parts}` leases as many."
    return (
        f"{found} TensorFlow has started, so it makes no logical CPUs any more.",
        "Give sublet.split a function that builds the model, or write before the model is built: "
        + _SETTING.format(parts),
    )
