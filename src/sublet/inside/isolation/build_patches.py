"""The patches that take the build lock where TensorFlow and Keras build, compile and trace.

Keras is not thread-safe while it does so; a built model runs in any number of threads. User data is
never read with the lock held, because whatever makes the data may have to build something itself.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..current_lease import say
from . import call_context
from .build_lock import BUILD_LOCK, UNFINISHED, FunctionLock, locked

_wrapping = threading.Lock()


class _Untraced(Exception):
    """A function has to be traced, and the calling thread does not hold the build lock."""


def patch_tensorflow() -> None:
    """Serialise the start of the runtime, and tracing. `tensorflow` must be imported."""
    from tensorflow.python.autograph.core import config as autograph
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import polymorphic_function as polymorphic
    from tensorflow.python.eager.polymorphic_function import tracing_compilation as tracing
    from tensorflow.python.ops import script_ops

    # AutoGraph rewrites the user's code; our wrappers are not part of it.
    autograph.CONVERSION_RULES = (
        autograph.DoNotConvert(__package__),
        *autograph.CONVERSION_RULES,
    )
    context.Context.ensure_initialized = exclusive_first(context.Context.ensure_initialized)
    _patch_function_class(polymorphic.Function)
    create, trace = tracing._create_concrete_function, tracing.trace_function

    @functools.wraps(create)
    def create_concrete_function(*args: Any, **kwargs: Any) -> Any:
        if not BUILD_LOCK.held():
            raise _Untraced
        return create(*args, **kwargs)

    @functools.wraps(trace)
    def trace_function(*args: Any, **kwargs: Any) -> Any:
        try:
            return trace(*args, **kwargs)
        except _Untraced:
            # The exception has released the function's own lock.
            pass
        with BUILD_LOCK:
            return trace(*args, **kwargs)

    tracing._create_concrete_function = create_concrete_function
    tracing.trace_function = trace_function

    polymorphic._frequent_tracing_detector_manager = _Detectors(
        polymorphic._frequent_tracing_detector_manager
    )
    call_python = script_ops._internal_py_func

    @functools.wraps(call_python)
    def internal_py_func(func: Any, *args: Any, **kwargs: Any) -> Any:
        # TensorFlow runs it in a thread of its own.
        return call_python(call_context.bound(func) if callable(func) else func, *args, **kwargs)

    script_ops._internal_py_func = internal_py_func


class _Detectors:
    """Counts traces for each call. TensorFlow warns of a function that is traced again and again,
    and many calls that trace it once each would look the same."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        call = call_context.current()
        if call is None:
            return getattr(self._manager, name)
        return getattr(call.state.setdefault("tracings", type(self._manager)()), name)


def _patch_function_class(function_class: Any) -> None:
    """Hold the build lock from a function's first trace until its variables are initialised.

    TensorFlow releases the function's lock in between, and a second thread would find a function
    that is ready with variables that are not.
    """
    initialize = function_class._initialize
    initialize_variables = function_class._initialize_uninitialized_variables
    initialization_function = function_class.get_initialization_function

    @functools.wraps(initialize)
    def initialize_locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = initialize(self, *args, **kwargs)
        if self._created_variables:
            BUILD_LOCK.acquire()
            vars(self)[UNFINISHED] = True
        return result

    def finishing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                if vars(self).pop(UNFINISHED, False):
                    BUILD_LOCK.release()

        return run

    function_class._initialize = initialize_locked
    function_class._initialize_uninitialized_variables = finishing(initialize_variables)
    function_class.get_initialization_function = finishing(initialization_function)
    function_class._lock = property(_function_lock, _set_function_lock)


def _function_lock(function: Any) -> Any:
    lock = vars(function).get("_lock")
    if lock is None:
        raise AttributeError("_lock")
    if not isinstance(lock, FunctionLock):
        # Made before the patch; concurrent threads must get the same wrapper.
        with _wrapping:
            lock = vars(function)["_lock"]
            if not isinstance(lock, FunctionLock):
                lock = vars(function)["_lock"] = FunctionLock(function, lock)
    return lock


def _set_function_lock(function: Any, lock: Any) -> None:
    vars(function)["_lock"] = FunctionLock(function, lock)


def exclusive_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, run by one thread at a time until it has returned once, on behalf of no call.

    Starting the runtime primes its memory, which nobody may use meanwhile, and starts threads that
    outlive the first call.
    """
    starting = threading.RLock()
    started = False

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal started
        if started:
            return original(*args, **kwargs)
        with starting, call_context.working_for(None):
            result = original(*args, **kwargs)
            started = True
            return result

    return run


def _unbuilt(layer: Any) -> bool:
    return not getattr(layer, "built", True)


_METHODS: dict[str, dict[str, str]] = {
    "keras": {
        "layers.layer:Layer": "__call__",
        "trainers.trainer:Trainer": "compile _symbolic_build",
        "backend.tensorflow.trainer:TensorFlowTrainer": (
            "make_train_function make_test_function make_predict_function"
        ),
        "optimizers.base_optimizer:BaseOptimizer": "apply",
    },
    "tf_keras": {
        "engine.base_layer:Layer": "__call__",
        "engine.training:Model": (
            "build compile make_train_function make_test_function make_predict_function"
        ),
        "engine.training_v1:Model": "compile",
    },
}
_ONLY_UNBUILT = ("__call__", "apply")
"""Methods that build only if their object is not built."""


def patch_keras() -> None:
    """Serialise building, compiling, saving and loading. `keras` must be imported."""
    _patch_package("keras")
    _patch_new_layers()


def patch_tf_keras() -> None:
    """As `patch_keras`, for Keras 2."""
    _patch_package("tf_keras")


def _patch_package(package: str) -> None:
    for place, names in _METHODS[package].items():
        module, _, owner_name = place.partition(":")
        try:
            owner = getattr(importlib.import_module(f"{package}.src.{module}"), owner_name)
            for name in names.split():
                needed = _unbuilt if name in _ONLY_UNBUILT else None
                setattr(owner, name, locked(getattr(owner, name), needed))
        except (ImportError, AttributeError) as wrong:
            say(f"this Keras builds in a place that is not known here: {wrong}")
    try:
        saving = importlib.import_module(f"{package}.src.saving.saving_api")
        for name in ("load_model", "save_model"):
            original = getattr(saving, name)
            replace_everywhere(original, name, locked(original))
    except (ImportError, AttributeError) as wrong:
        say(f"this Keras saves in a place that is not known here: {wrong}")


def _patch_new_layers() -> None:
    """Lock the `build` that Keras gives each new layer."""
    from keras.src.layers.layer import Layer

    new = Layer.__new__

    @functools.wraps(new)
    def new_layer(cls: Any, *args: Any, **kwargs: Any) -> Any:
        layer = new(cls, *args, **kwargs)
        layer.build = locked(layer.build)
        return layer

    Layer.__new__ = staticmethod(new_layer)


def replace_everywhere(original: Any, name: str, replacement: Any) -> None:
    """Replace a function in every module of its package that offers it under this name."""
    top = original.__module__.partition(".")[0]
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == top and vars(module).get(name) is original:
            setattr(module, name, replacement)
