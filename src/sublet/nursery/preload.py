"""Does what every TensorFlow program does before its own work, once, before the fork.

Nothing here may start the runtime, a thread or a GPU; the nursery checks that afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from sublet.inside import allocator, hook

from . import abc_cache, onednn

_FIRST_FIT = (
    "numpy.random",
    "secrets",
    "tensorflow.python.data.ops.concatenate_op",
    "tensorflow.python.data.ops.flat_map_op",
    "tensorflow.python.data.ops.from_tensors_op",
    "tensorflow.python.data.ops.from_tensor_slices_op",
    "tensorflow.python.data.ops.range_op",
    "tensorflow.python.data.ops.zip_op",
    "tensorflow.python.data.ops.shuffle_op",
    "tensorflow.python.data.ops.batch_op",
    "tensorflow.python.data.ops.map_op",
    "tensorflow.python.data.ops.prefetch_op",
    "tensorflow.python.data.ops.repeat_op",
    "tensorflow.python.data.ops.take_op",
    "tensorflow.python.data.ops.options",
)
_FIRST_CALL = (
    "cloudpickle",
    "multiprocessing.process",
    "runpy",
    "sublet.inside.isolation.thread_runner",
    "sublet.formats.oom_evidence",
    "sublet.formats.pickle_transport",
)
"""Imports of `inside.pool_worker`."""


_context: Any = None
"""The module whose `_context` shows whether the runtime has started."""


def preload() -> str:
    """Import what programs need; returns TensorFlow's version."""
    global _context
    with _without_readline():
        tensorflow = importlib.import_module("tensorflow")
        _context = sys.modules.get("tensorflow.python.eager.context")
        hook.install()
        for name in ("keras", *_FIRST_FIT, *_FIRST_CALL):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    _fill_registries(tensorflow)
    abc_cache.fill()
    with contextlib.suppress(Exception):
        onednn.prepare()
    return str(tensorflow.__version__)


@contextlib.contextmanager
def _without_readline() -> Iterator[None]:
    """Keep imports from setting up line editing for `input()`. From 3.13 on `pdb` does that, which
    absl imports; `settings` makes up for it."""
    sys.modules["readline"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["readline"]
        sys.modules.pop("rlcompleter", None)


def _fill_registries(tensorflow: Any) -> None:
    """Complete TensorFlow's tables of kernels and operations, which it fills when first asked.

    That is more than half of the time of a first operation.
    """
    with contextlib.suppress(ImportError, AttributeError):
        kernels = importlib.import_module("tensorflow.python.framework.kernels")
        kernels.get_registered_kernels_for_op("MatMul")
    with contextlib.suppress(ImportError, AttributeError):
        operations = importlib.import_module("tensorflow.python.framework.op_def_registry")
        for name in dir(tensorflow.raw_ops):
            if name[:1].isupper():
                operations.get(name)
        operations.get("SubletAsksForNone")  # The first miss builds a list of all names.
    with contextlib.suppress(Exception):
        # Otherwise the first operation registers the kernels that XLA compiles.
        register = (
            allocator.c_library()._ZN10tensorflow13XlaOpRegistry26RegisterCompilationKernelsEv
        )
        register.restype = None
        register()


def runtime_started() -> bool:
    """Whether TensorFlow's runtime runs in this process."""
    return bool(getattr(getattr(_context, "_context", None), "_initialized", False))
