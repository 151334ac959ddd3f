"""Where TensorFlow and Keras build: the places that need the turn.

Owns the patches that take it. Keras is not thread-safe while it builds, compiles and traces; what
has been built runs in any number of threads. User data is never read with the turn held: whoever
makes the data may have to build something first.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from ...formats.lease import say
from . import call_context
from .build_lock import TURN, UNFINISHED, FunctionLock, taking

_wrapping = threading.Lock()


class _Untraced(Exception):
    """A function has to be traced, and the thread that found out does not have the turn."""


def share_tensorflow() -> None:
    """Serialise the start of the runtime, and tracing. Needs `tensorflow` to be imported."""
    from tensorflow.python.autograph.core import config as autograph
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import polymorphic_function as polymorphic
    from tensorflow.python.eager.polymorphic_function import tracing_compilation as tracing
    from tensorflow.python.ops import script_ops

    # What stands in for a function here is not the user's code, which AutoGraph rewrites.
    autograph.CONVERSION_RULES = (
        autograph.DoNotConvert(__package__),
        *autograph.CONVERSION_RULES,
    )
    context.Context.ensure_initialized = alone_at_first(context.Context.ensure_initialized)
    _share_functions(polymorphic.Function)
    create, trace = tracing._create_concrete_function, tracing.trace_function

    @functools.wraps(create)
    def create_concrete_function(*args: Any, **kwargs: Any) -> Any:
        if not TURN.held():
            raise _Untraced
        return create(*args, **kwargs)

    @functools.wraps(trace)
    def trace_function(*args: Any, **kwargs: Any) -> Any:
        try:
            return trace(*args, **kwargs)
        except _Untraced:
            # The function's own lock has been given back on the way here.
            pass
        with TURN:
            return trace(*args, **kwargs)

    tracing._create_concrete_function = create_concrete_function
    tracing.trace_function = trace_function

    polymorphic._frequent_tracing_detector_manager = _Detectors(
        polymorphic._frequent_tracing_detector_manager
    )
    call_python = script_ops._internal_py_func

    @functools.wraps(call_python)
    def internal_py_func(func: Any, *args: Any, **kwargs: Any) -> Any:
        # TensorFlow will run it in a thread of its own.
        return call_python(call_context.bound(func) if callable(func) else func, *args, **kwargs)

    script_ops._internal_py_func = internal_py_func


class _Detectors:
    """TensorFlow warns of functions that are traced again and again, by where they are written.
    Many calls that each trace once would look like it, so they are counted for each call."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        call = call_context.current()
        if call is None:
            return getattr(self._manager, name)
        return getattr(call.notes.setdefault("tracings", type(self._manager)()), name)


def _share_functions(function_class: Any) -> None:
    """Have a function's first tracing and the variables that it makes in one turn.

    TensorFlow gives the function's lock back before it initialises them, and a second thread would
    find a function that is ready with variables that are not.
    """
    initialize = function_class._initialize
    initialize_variables = function_class._initialize_uninitialized_variables
    initialization_function = function_class.get_initialization_function

    @functools.wraps(initialize)
    def keep_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = initialize(self, *args, **kwargs)
        if self._created_variables:
            TURN.acquire()
            vars(self)[UNFINISHED] = True
        return result

    def finishing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                if vars(self).pop(UNFINISHED, False):
                    TURN.release()

        return run

    function_class._initialize = keep_turn
    function_class._initialize_uninitialized_variables = finishing(initialize_variables)
    function_class.get_initialization_function = finishing(initialization_function)
    function_class._lock = property(_function_lock, _set_function_lock)


def _function_lock(function: Any) -> Any:
    lock = vars(function).get("_lock")
    if lock is None:
        raise AttributeError("_lock")
    if not isinstance(lock, FunctionLock):
        # Made before the patch; threads that come at once must get the same one.
        with _wrapping:
            lock = vars(function)["_lock"]
            if not isinstance(lock, FunctionLock):
                lock = vars(function)["_lock"] = FunctionLock(function, lock)
    return lock


def _set_function_lock(function: Any, lock: Any) -> None:
    vars(function)["_lock"] = FunctionLock(function, lock)


def alone_at_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` by one thread at a time until it has ended once, and for no call.

    What starts the runtime also primes its memory, which nobody may use yet, and starts threads
    that outlive the call that came first.
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


_KERAS: dict[str, tuple[tuple[str, Callable[[Any], bool] | None], ...]] = {
    "keras.src.layers.layer:Layer": (("__call__", _unbuilt),),
    "keras.src.trainers.trainer:Trainer": (("compile", None), ("_symbolic_build", None)),
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer": (
        ("make_train_function", None),
        ("make_test_function", None),
        ("make_predict_function", None),
    ),
    "keras.src.optimizers.base_optimizer:BaseOptimizer": (("apply", _unbuilt),),
}
_KERAS_FUNCTIONS = ("keras.src.saving.saving_api:load_model save_model",)

_TF_KERAS: dict[str, tuple[tuple[str, Callable[[Any], bool] | None], ...]] = {
    "tf_keras.src.engine.base_layer:Layer": (("__call__", _unbuilt),),
    "tf_keras.src.engine.training:Model": (
        ("build", None),
        ("compile", None),
        ("make_train_function", None),
        ("make_test_function", None),
        ("make_predict_function", None),
    ),
    "tf_keras.src.engine.training_v1:Model": (("compile", None),),
}
_TF_KERAS_FUNCTIONS = ("tf_keras.src.saving.saving_api:load_model save_model",)


def share_keras() -> None:
    """Serialise building, compiling, saving and loading. Needs `keras` to be imported."""
    _patch_methods(_KERAS)
    _patch_functions(_KERAS_FUNCTIONS)
    _patch_new_layers()


def share_tf_keras() -> None:
    """The same for Keras 2."""
    _patch_methods(_TF_KERAS)
    _patch_functions(_TF_KERAS_FUNCTIONS)


def _patch_methods(
    classes: dict[str, tuple[tuple[str, Callable[[Any], bool] | None], ...]],
) -> None:
    for place, methods in classes.items():
        module, _, name = place.partition(":")
        try:
            owner = getattr(importlib.import_module(module), name)
            for method, needed in methods:
                setattr(owner, method, taking(getattr(owner, method), needed))
        except (ImportError, AttributeError) as wrong:
            say(f"this Keras builds in a place that is not known here: {wrong}")


def _patch_functions(places: tuple[str, ...]) -> None:
    for place in places:
        module, _, names = place.partition(":")
        try:
            for name in names.split():
                original = getattr(importlib.import_module(module), name)
                replace_everywhere(original, name, taking(original))
        except (ImportError, AttributeError) as wrong:
            say(f"this Keras saves in a place that is not known here: {wrong}")


def _patch_new_layers() -> None:
    """Keras gives each layer a `build` of its own when it is made."""
    from keras.src.layers.layer import Layer

    new = Layer.__new__

    @functools.wraps(new)
    def new_layer(cls: Any, *args: Any, **kwargs: Any) -> Any:
        layer = new(cls, *args, **kwargs)
        layer.build = taking(layer.build)
        return layer

    Layer.__new__ = staticmethod(new_layer)


def replace_everywhere(original: Any, name: str, other: Any) -> None:
    """A function is offered under many names; each module of its package that has it gets the
    other."""
    top = original.__module__.partition(".")[0]
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == top and vars(module).get(name) is original:
            setattr(module, name, other)
