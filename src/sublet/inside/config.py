"""Changes a ConfigProto so that it fits a lease: memory limits of GPUs, and threads that sleep.

The proto is changed in place; a second pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..formats.lease import MIB, Card, LeaseTerms


def bound(config: Any, lease: LeaseTerms, gpus: int = 1) -> list[str]:
    """Make `config` fit `lease`; a line for each setting that had to change.

    `gpus` is how many GPUs the program can see. Without any, and under a lease on the CPU, whose
    ceiling is in the environment, nothing changes: TensorFlow refuses limits for absent devices.
    """
    if not lease.on_gpu or gpus == 0 or config.device_count.get("GPU", 1) == 0:
        return []
    options = config.gpu_options
    notes = see_leased_gpu(config, lease)
    notes += _use_bfc(options)
    _limit_devices(options, leased_cards(options, lease, gpus), lease, notes)
    # TensorFlow's Python API drops growth where there is a limit; its allocator does both.
    options.allow_growth = True
    return notes


def spare_processors(config: Any) -> None:
    """Have idle threads sleep and not spin, as neighbours need the processors. 24 short trainings,
    two at a time on two cores, took 14.5 s instead of 16.4 (means of six)."""
    config.experimental.disable_thread_spinning = True


def divide(config: Any, parts: int, on_gpu: bool) -> None:
    """Make so many logical devices of each GPU, or of the CPU, unless the program does so itself.
    Those of a GPU get a part of its limit each; those of a CPU share one pool."""
    if not on_gpu:
        if config.device_count.get("CPU", 1) <= 1:
            config.device_count["CPU"] = parts
    elif not any(one.memory_limit_mb for one in config.gpu_options.experimental.virtual_devices):
        config.gpu_options.experimental.num_virtual_devices_per_gpu = parts


def see_leased_gpu(config: Any, lease: LeaseTerms) -> list[str]:
    """Use the indices that the GPUs of a lease have: 0 and so on."""
    options = config.gpu_options
    asked = options.visible_device_list
    indices = [str(number) for number in range(len(lease.cards))]
    words = [word.strip() for word in asked.split(",")] if asked else []
    if set(words) <= set(indices) and len(set(words)) == len(words):
        return []
    options.visible_device_list = ",".join(indices)
    here = f"one GPU, here {lease.device}" if len(indices) == 1 else lease.devices
    return [
        f"visible_device_list={asked} becomes {options.visible_device_list}: a lease is on {here}"
    ]


def leased_cards(options: Any, lease: LeaseTerms, gpus: int) -> list[Card]:
    """The cards of the lease behind TensorFlow's GPUs, in the order that `options` put them in."""
    asked = options.visible_device_list
    order = [int(word) for word in asked.split(",")] if asked else range(len(lease.cards))
    return [lease.cards[number] for number in order if number < min(gpus, len(lease.cards))]


def _use_bfc(options: Any) -> list[str]:
    notes = []
    if options.allocator_type.lower() not in ("", "bfc"):
        notes.append(f"allocator_type={options.allocator_type} is dropped: no lease holds under it")
        options.allocator_type = ""
    if getattr(options.experimental, "use_cuda_malloc_async", False):
        notes.append("use_cuda_malloc_async is dropped: no lease holds under it")
        options.experimental.use_cuda_malloc_async = False
    return notes


def _budget(fraction: float, card: Card, notes: list[str]) -> int:
    """The MiB to distribute on a card."""
    if fraction <= 0:
        return card.ceiling_mib
    # The proto may hold a float32: 0.1 of 1000 MiB must be 100, not 99.
    wanted = max(1, int(fraction * card.capacity / MIB + 1e-3))
    if wanted > card.ceiling_mib:
        notes.append(
            f"per_process_gpu_memory_fraction={fraction:g} is {wanted} MiB and becomes "
            f"{card.ceiling_mib} MiB: the ceiling of this lease"
        )
    return min(wanted, card.ceiling_mib)


def _limit_devices(
    options: Any, cards: Sequence[Card], lease: LeaseTerms, notes: list[str]
) -> None:
    """A limit on every card. Clears the fraction, which TensorFlow refuses beside a limit."""
    fraction = options.per_process_gpu_memory_fraction
    options.per_process_gpu_memory_fraction = 0
    experimental = options.experimental
    devices = experimental.virtual_devices
    if len(devices) > len(cards):
        notes.append(f"logical devices of other GPUs are dropped: the lease is on {lease.devices}")
        del devices[len(cards) :]
    parts = max(1, getattr(experimental, "num_virtual_devices_per_gpu", 0))
    if parts > 1:
        experimental.num_virtual_devices_per_gpu = 0
    while len(devices) < len(cards):
        devices.add()
    for device, card in zip(devices, cards, strict=True):
        _limit_device(device, _budget(fraction, card, notes), parts, notes)


def _limit_device(device: Any, budget: int, parts: int, notes: list[str]) -> None:
    limits = list(device.memory_limit_mb)
    if not limits:
        device.memory_limit_mb.extend([max(1, budget // parts)] * parts)
    elif sum(limits) > budget:
        scaled = [max(1, int(limit * budget / sum(limits))) for limit in limits]
        device.memory_limit_mb[:] = scaled
        notes.append(
            f"logical GPUs of {_sum(limits)} MiB become {_sum(scaled)} MiB: "
            f"together they fit the ceiling of this lease"
        )


def _sum(limits: Sequence[float]) -> str:
    return " + ".join(f"{limit:.0f}" for limit in limits)
