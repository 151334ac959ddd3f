"""The patches on TensorFlow: where a lease enters a program that knows nothing of it.

Owns them all, each where TensorFlow builds what its runtime starts with, so that the program's own
calls stay as they are and are answered within the lease. Never starts the runtime, and does
nothing in a process without a lease.

Applied once per interpreter, perhaps long before there is a lease: a warm process is patched
before the fork. So each patch looks the lease up when it acts.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..formats.lease import LeaseTerms
from ..formats.lease_environment import BFC_LIMIT, LEFT, cpu_limit
from . import allocator, measure, oom, probe, trim
from .config import bound, see_leased_gpu, spare_processors
from .current_lease import current, impose, say
from .warm_start import cpp_log_level

OLDEST, NEWEST = "2.16", "2.21"
"""The oldest and the newest TensorFlow that tests were run with. Nothing is decided by them."""


def apply() -> None:
    """Patch the TensorFlow that is imported, once; one that is too different is said to be so, and
    runs with the part of the lease that needs no patch: on a CPU, the ceiling."""
    try:
        from tensorflow.python.client import device_lib, session
        from tensorflow.python.eager import context
        from tensorflow.python.framework import errors_impl
        from tensorflow.python.training import server_lib

        if getattr(context.Context, "_sublet", False):
            return
        context.Context._sublet = True
        _patch_context(context.Context)
        _patch_session(session.BaseSession)
        _patch_device_lib(device_lib)
        _patch_server(server_lib)
        oom.watch(errors_impl.ResourceExhaustedError)
    except Exception as wrong:
        if current() is not None:
            say(
                f"TensorFlow {_version()} cannot be held to a lease in full: {wrong!r}; "
                f"Sublet is tested with {OLDEST} to {NEWEST}: use one of these, or a newer Sublet"
            )


def _patch_context(context_class: Any) -> None:
    """Eager execution, and the configuration that sessions without one of their own get."""
    config_of = context_class.config.fget
    find_devices = context_class._initialize_physical_devices
    initialize = context_class.ensure_initialized

    @functools.wraps(config_of)
    def config(self: Any) -> Any:
        proto = config_of(self)
        _bound(proto, self)
        return proto

    @functools.wraps(find_devices)
    def initialize_physical_devices(self: Any, reinitialize: bool = False) -> Any:
        if self._physical_devices is None or reinitialize:
            # The first cuInit is next, and CUDA reads its variables only then.
            _settle()
            _see_leased_gpu(self)
        return find_devices(self, reinitialize)

    @functools.wraps(initialize)
    def ensure_initialized(self: Any) -> None:
        if self._initialized and _ready_pid == os.getpid():
            return
        with _starting:
            if self._initialized:
                return
            _settle()
            initialize(self)
            # With a cluster, `CPU:0` may be a device of another process.
            primes = self._server_def is None
            _started(lambda lease: allocator.prime(lease, self) if primes else None)

    context_class.config = property(config)
    context_class._initialize_physical_devices = initialize_physical_devices
    context_class.ensure_initialized = ensure_initialized


def _patch_session(session_class: Any) -> None:
    """Sessions of TensorFlow 1, with or without a configuration of their own."""
    original = session_class.__init__

    @functools.wraps(original)
    def init(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        _settle()
        if target or _ready_pid == os.getpid():
            # Another target is another process's runtime.
            original(self, target, graph, _bounded_copy(config))
            return
        with _starting:
            original(self, target, graph, _bounded_copy(config))
            _started(allocator.prime)

    session_class.__init__ = init


def _patch_device_lib(module: Any) -> None:
    """Listing local devices makes them, with the defaults if nothing else is said."""
    original = module.list_local_devices

    @functools.wraps(original)
    def list_local_devices(session_config: Any = None) -> Any:
        _settle()
        if session_config is None and current() is not None:
            from tensorflow.python.eager import context

            session_config = context.context().config
        return original(_bounded_copy(session_config))

    module.list_local_devices = list_local_devices


def _patch_server(module: Any) -> None:
    """A server of a cluster makes its devices from the configuration in its definition."""
    original = module._make_server_def

    @functools.wraps(original)
    def make_server_def(*args: Any, **kwargs: Any) -> Any:
        _settle()
        definition = original(*args, **kwargs)
        _bound(definition.default_session_config)
        return definition

    module._make_server_def = make_server_def


def _settle() -> None:
    """Impose the environment again: the program may have changed it since it started."""
    lease = current()
    if lease is None:
        return
    impose(lease)
    left = _left(lease)
    if not lease.on_gpu and (cpu_limit(os.environ) or 0) > left.ceiling_mib:
        os.environ[BFC_LIMIT] = os.environ[LEFT] = str(left.ceiling_mib)
    cpp_log_level.follow(os.environ)


def _bound(proto: Any, context: Any = None) -> None:
    """Hold `proto` within the lease, if there is one."""
    lease = current()
    if lease is None:
        return
    try:
        spare_processors(proto)
        # Only a GPU's devices are asked for: looking for them starts the driver.
        if not lease.on_gpu:
            return
        for note in bound(proto, _left(lease), _gpus(context)):
            say(note)
    except Exception as wrong:
        say(f"the lease could not be put into TensorFlow's configuration: {wrong!r}")


def _bounded_copy(config: Any) -> Any:
    """The program keeps its own proto as it made it; what is no proto is TensorFlow's to refuse."""
    if current() is None or not hasattr(config, "gpu_options"):
        return config
    copy = _copy(config)
    _bound(copy)
    return copy


def _see_leased_gpu(context: Any) -> None:
    """A program may give its configuration to the eager context; TensorFlow checks the device
    indices in it against the devices that the lease leaves visible."""
    lease = current()
    if lease is not None and lease.on_gpu and context._config is not None:
        context._config = _copy(context._config)
        for note in see_leased_gpu(context._config, lease):
            say(note)


def _gpus(context: Any) -> int:
    if context is None:
        from tensorflow.python.eager import context as eager

        context = eager.context()
    return len(context.list_physical_devices("GPU"))


def _copy(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _version() -> str:
    return str(getattr(sys.modules.get("tensorflow"), "__version__", "of this program"))


_ready_pid = 0
"""The process in which the runtime has started and its pool is primed."""
_started_with = 0
"""The ceiling with which it has, in bytes."""
_starting = threading.RLock()
"""Held while the runtime starts for the first time: until the pool is primed, which takes all of it
for a moment, no other thread may come by and find nothing left."""


def _forked() -> None:
    """A child starts anew, whoever held the lock in its parent."""
    global _starting
    _starting = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def _started(prime: Callable[[LeaseTerms], object]) -> None:
    """The runtime runs; the first time in this process, prime its pool and begin to measure."""
    global _ready_pid, _started_with
    lease = current()
    if lease is not None and _ready_pid != os.getpid():
        left = _left(lease)
        if left.ceiling < lease.ceiling:
            say(
                f"TensorFlow has {left.ceiling_mib} of this lease's {lease.ceiling_mib} MiB here: "
                "the rest is lent to what this program has started, and was not back when it began"
            )
        _started_with = left.ceiling
        prime(lease)
        measure.start()
        probe.install()
    _ready_pid = os.getpid()


def _left(lease: LeaseTerms) -> LeaseTerms:
    """The lease without what is lent at the moment to jobs that this program has started itself. A
    runtime keeps the ceiling with which it began."""
    if _ready_pid == os.getpid():
        return dataclasses.replace(lease, ceiling=_started_with or lease.ceiling)
    return dataclasses.replace(lease, ceiling=trim.asked(lease) or lease.ceiling)
