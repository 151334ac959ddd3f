"""Changes a ConfigProto so that it fits a lease: memory limits of GPUs, and threads that sleep.

The proto is changed in place; a second pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..formats.lease import MIB, LeaseTerms


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
    budget = _take_fraction(options, lease, notes)
    _limit_devices(options, budget, lease, notes)
    # TensorFlow's Python API drops growth where there is a limit; its allocator does both.
    options.allow_growth = True
    return notes


def spare_processors(config: Any) -> None:
    """Have idle threads sleep and not spin, as neighbours need the processors. 24 short trainings,
    two at a time on two cores, took 14.5 s instead of 16.4 (means of six)."""
    config.experimental.disable_thread_spinning = True


def see_leased_gpu(config: Any, lease: LeaseTerms) -> list[str]:
    """Use index 0, which the one GPU of a lease always has."""
    options = config.gpu_options
    asked = options.visible_device_list
    if asked in ("", "0"):
        return []
    options.visible_device_list = "0"
    return [f"visible_device_list={asked} becomes 0: a lease is on one GPU, here {lease.device}"]


def _use_bfc(options: Any) -> list[str]:
    notes = []
    if options.allocator_type.lower() not in ("", "bfc"):
        notes.append(f"allocator_type={options.allocator_type} is dropped: no lease holds under it")
        options.allocator_type = ""
    if getattr(options.experimental, "use_cuda_malloc_async", False):
        notes.append("use_cuda_malloc_async is dropped: no lease holds under it")
        options.experimental.use_cuda_malloc_async = False
    return notes


def _take_fraction(options: Any, lease: LeaseTerms, notes: list[str]) -> int:
    """The MiB to distribute. Clears the fraction, which TensorFlow refuses beside a limit."""
    fraction = options.per_process_gpu_memory_fraction
    options.per_process_gpu_memory_fraction = 0
    if fraction <= 0:
        return lease.ceiling_mib
    # The proto may hold a float32: 0.1 of 1000 MiB must be 100, not 99.
    wanted = max(1, int(fraction * lease.capacity / MIB + 1e-3))
    if wanted > lease.ceiling_mib:
        notes.append(
            f"per_process_gpu_memory_fraction={fraction:g} is {wanted} MiB and becomes "
            f"{lease.ceiling_mib} MiB: the ceiling of this lease"
        )
    return min(wanted, lease.ceiling_mib)


def _limit_devices(options: Any, budget: int, lease: LeaseTerms, notes: list[str]) -> None:
    experimental = options.experimental
    devices = experimental.virtual_devices
    if len(devices) > 1:
        notes.append(f"logical devices of other GPUs are dropped: the lease is on {lease.device}")
        del devices[1:]
    parts = max(1, getattr(experimental, "num_virtual_devices_per_gpu", 0))
    if parts > 1:
        experimental.num_virtual_devices_per_gpu = 0
    if not devices:
        devices.add()
    limits = list(devices[0].memory_limit_mb)
    if not limits:
        devices[0].memory_limit_mb.extend([max(1, budget // parts)] * parts)
    elif sum(limits) > budget:
        scaled = [max(1, int(limit * budget / sum(limits))) for limit in limits]
        devices[0].memory_limit_mb[:] = scaled
        notes.append(
            f"logical GPUs of {_sum(limits)} MiB become {_sum(scaled)} MiB: "
            f"together they fit the ceiling of this lease"
        )


def _sum(limits: Sequence[float]) -> str:
    return " + ".join(f"{limit:.0f}" for limit in limits)
