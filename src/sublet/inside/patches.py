"""The patches on TensorFlow, which hold a program to a lease that it knows nothing of.

They sit where TensorFlow builds what its runtime starts with, so a program's own settings work as
they are, within the lease. They never start the runtime, and do nothing in a process without a
lease.

They are applied once per interpreter, perhaps long before there is a lease: a nursery is patched
before it forks. So each patch looks up the lease when it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..formats import attempt_files, shares
from ..formats.lease import LeaseTerms
from ..formats.lease_environment import (
    BFC_LIMIT,
    DUMP,
    LEFT,
    USE_BFC,
    cpu_limit,
    hides_gpus,
    is_ours,
    logical_devices,
)
from . import allocator, event_writers, first_share, measure, oom, probe
from .config import bound, divide, see_leased_gpu, spare_processors
from .cuda_libraries import INSTALL, too_old, why_no_gpu
from .current_lease import current, impose, say
from .warm_start import native_libraries

OLDEST, NEWEST = "2.16", "2.21"
"""The oldest and the newest TensorFlow that tests were run with. Nothing is decided by them."""


def apply() -> None:
    """Patch the imported TensorFlow, once. If it is too different, that is reported, and the
    program runs with the part of the lease that needs no patch: on a CPU, the ceiling."""
    try:
        from tensorflow.python.client import device_lib, session
        from tensorflow.python.eager import context
        from tensorflow.python.framework import errors_impl, ops
        from tensorflow.python.training import py_checkpoint_reader, server_lib

        if getattr(context.Context, "_sublet", False):
            return
        context.Context._sublet = True
        _patch_context(context.Context)
        _patch_session(session.BaseSession)
        _patch_graph(ops.Graph)
        _patch_reader(py_checkpoint_reader)
        _patch_device_lib(device_lib)
        _patch_server(server_lib)
        event_writers.watch_tensorflow()
        oom.watch(
            errors_impl.ResourceExhaustedError,
            errors_impl.InternalError,
            errors_impl.NotFoundError,
            errors_impl.InvalidArgumentError,
            errors_impl.FailedPreconditionError,
            errors_impl.UnimplementedError,
        )
    except Exception as wrong:
        if current() is not None:
            say(
                f"TensorFlow {_version()} cannot be held to a lease in full: {wrong!r}; "
                f"Sublet is tested with {OLDEST} to {NEWEST}: use one of these, or a newer Sublet"
            )


def _patch_context(context_class: Any) -> None:
    """Patch eager execution, and the configuration of sessions without one of their own."""
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
            # CUDA reads its variables at the first cuInit, which comes next.
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
            _settle(starts=True)
            _do_without_gpu(self)
            initialize(self)
            # With a cluster, `CPU:0` may be a device of another process.
            primes = self._server_def is None
            _started(lambda lease: allocator.prime(lease, self) if primes else 0)

    context_class.config = property(config)
    context_class._initialize_physical_devices = initialize_physical_devices
    context_class.ensure_initialized = ensure_initialized


def _patch_session(session_class: Any) -> None:
    """Patch sessions of TensorFlow 1, with or without a configuration of their own."""
    original = session_class.__init__

    @functools.wraps(original)
    def init(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        if target or _ready_pid == os.getpid():
            # Another target is another process's runtime.
            _settle()
            original(self, target, graph, _bounded_copy(config))
            return
        with _starting:
            _settle(starts=True)
            _do_without_gpu()
            original(self, target, graph, _bounded_copy(config))
            allocator.note_session(getattr(self, "_config", None))
            _started(allocator.prime)

    session_class.__init__ = init


def _patch_graph(graph_class: Any) -> None:
    """Patch graphs, which take memory while they are built, perhaps before the runtime starts."""
    original = graph_class.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        _make_pool()
        original(self, *args, **kwargs)

    graph_class.__init__ = init


def _patch_reader(module: Any) -> None:
    """Patch the reading of checkpoints, which needs no runtime."""
    original = module.NewCheckpointReader

    @functools.wraps(original)
    def new_checkpoint_reader(filepattern: Any) -> Any:
        _make_pool()
        return original(filepattern)

    module.NewCheckpointReader = new_checkpoint_reader


def _make_pool() -> None:
    """Have the pool of a lease on the CPU made before TensorFlow takes memory for the first time.

    If there is none by then, TensorFlow never uses it for what it allocates by itself: NumPy data
    that sessions are fed with, for example, and what wakes an allocation that waits.
    """
    if _ready_pid != os.getpid() and (lease := current()) is not None and not lease.on_gpu:
        with _starting:
            _settle(starts=True)
            allocator.make_pool()


def _patch_device_lib(module: Any) -> None:
    """Patch the listing of local devices, which creates them, by default with the defaults."""
    original = module.list_local_devices

    @functools.wraps(original)
    def list_local_devices(session_config: Any = None) -> Any:
        lease = current()
        with _starting:
            starts = lease is not None and not lease.on_gpu and _ready_pid != os.getpid()
            _settle(starts)
            if session_config is None and lease is not None:
                from tensorflow.python.eager import context

                session_config = context.context().config
            devices = original(_bounded_copy(session_config))
            if starts:
                # That has made the CPU's pool.
                _started(allocator.prime)
            return devices

    module.list_local_devices = list_local_devices


def _patch_server(module: Any) -> None:
    """Patch cluster servers, which make devices from the configuration in their definition."""
    original = module._make_server_def

    @functools.wraps(original)
    def make_server_def(*args: Any, **kwargs: Any) -> Any:
        _settle()
        definition = original(*args, **kwargs)
        _bound(definition.default_session_config)
        return definition

    original_init = module.Server.__init__

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with _starting:
            _settle(starts=True)
            _do_without_gpu()
            original_init(self, *args, **kwargs)
            allocator.note_session(self._server_def.default_session_config)
            _started(allocator.prime)

    module._make_server_def = make_server_def
    module.Server.__init__ = init


def _settle(starts: bool = False) -> None:
    """Impose the environment again, because the program may have changed it. If the runtime starts
    next, take this process's share of the lease."""
    lease = current()
    if lease is None:
        return
    impose(lease)
    if is_ours(os.environ.get(DUMP), lease):
        # Each process has its own, also one that has inherited another's.
        os.environ[DUMP] = attempt_files.dump_prefix(lease.dir, os.getpid())
    if starts:
        _take_share(lease)
    left = _left(lease)
    if not lease.on_gpu and (cpu_limit(os.environ) or 0) > left.ceiling_mib:
        os.environ[BFC_LIMIT] = os.environ[LEFT] = str(left.ceiling_mib)
    native_libraries.set_log_level(os.environ)


def _do_without_gpu(context: Any = None) -> None:
    """Where TensorFlow does not find the GPU of the lease: refuse to run elsewhere if the user has
    named that GPU, else bound the program on the CPU and say what to install. Where it finds one
    that the driver is too old for, it is going to fail by itself: say why. Called before there is a
    CPU allocator, which reads its limit once."""
    lease = current()
    if lease is None or not lease.on_gpu or hides_gpus(os.environ):
        return
    if _gpus(context):
        if why := too_old():
            say(f"{lease.devices}: {why}. Install a newer driver, or name another --device.")
        return
    found = f"TensorFlow finds no GPU, and this lease is on {lease.devices}: {why_no_gpu()}."
    advice = f"`{INSTALL}` brings what it needs; `--device cpu` leaves the GPU to others."
    if lease.chosen:
        raise RuntimeError(f"{found} {advice}")
    left = _left(lease).ceiling_mib
    limit = min(left, cpu_limit(os.environ) or left)
    os.environ[USE_BFC], os.environ[BFC_LIMIT] = "1", str(limit)
    say(f"{found} The program runs on the CPU, with at most {limit} MiB. {advice}")


def _bound(proto: Any, context: Any = None) -> None:
    """Hold `proto` within the lease, if there is one."""
    lease = current()
    if lease is None:
        return
    try:
        spare_processors(proto)
        if parts := logical_devices(os.environ):
            divide(proto, parts, lease.on_gpu and _gpus(context) > 0)
        # Listing GPUs starts the driver, so that is done for a lease on a GPU only.
        if not lease.on_gpu:
            return
        for note in bound(proto, _left(lease), _gpus(context)):
            say(note)
        if _ready_pid != os.getpid():
            allocator.note_gpu_limit(proto)
    except Exception as wrong:
        say(f"the lease could not be put into TensorFlow's configuration: {wrong!r}")


def _bounded_copy(config: Any) -> Any:
    """A copy within the lease, as the program's own proto must not change. TensorFlow refuses what
    is not a proto."""
    if current() is None or not hasattr(config, "gpu_options"):
        return config
    copy = _copy(config)
    _bound(copy)
    return copy


def _see_leased_gpu(context: Any) -> None:
    """Adjust the device indices in the program's own configuration of the eager context: TensorFlow
    checks them against the devices that the lease leaves visible."""
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
_share: tuple[int, str, int] = (0, "", 0)
"""The process that has taken a share to start with, the directory of its lease, and the bytes."""
_starting = threading.RLock()
"""Held while the runtime starts for the first time. Priming takes the whole pool for a moment, in
which no other thread may ask for memory."""


def _forked() -> None:
    """Give a forked child a new lock, which nobody holds."""
    global _starting
    _starting = threading.RLock()


os.register_at_fork(after_in_child=_forked)


def _take_share(lease: LeaseTerms) -> None:
    """Take this process's share, before TensorFlow reads its limits. Waits if the other processes
    of the program have taken all, and then fails like an allocation."""
    global _share
    if _has_share(lease):
        return
    try:
        _share = (os.getpid(), lease.dir, first_share.take(lease))
    except first_share.NoShare as none:
        from tensorflow.python.framework import errors_impl

        raise errors_impl.ResourceExhaustedError(None, None, str(none)) from None


def _has_share(lease: LeaseTerms) -> bool:
    return _share[:2] == (os.getpid(), lease.dir)


def _started(prime: Callable[[LeaseTerms], int]) -> None:
    """Prime the pool and begin to measure, when the runtime starts for the first time."""
    global _ready_pid
    lease = current()
    if lease is not None and _ready_pid != os.getpid():
        total = shares.total(lease)
        if total < lease.ceiling:
            say(
                f"TensorFlow has {total >> 20} of this lease's {lease.ceiling_mib} MiB here: "
                "the rest is lent to what this program has started, and was not back when it began"
            )
        measure.start(_left(lease).ceiling, prime(lease))
        probe.install()
        if lease.splits:
            from .training import install

            install.install()
    _ready_pid = os.getpid()


def _left(lease: LeaseTerms) -> LeaseTerms:
    """The lease less what is not for this process: what is lent now to jobs that the program has
    started, and the shares of its other processes. A started runtime keeps what it started with."""
    share = _share[2] if _has_share(lease) else shares.total(lease)
    return dataclasses.replace(lease, ceiling=share)
