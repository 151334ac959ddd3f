"""Gives each call its own random numbers.

Replaces what a process has only once: Python's `random`, NumPy's old global generator, and
TensorFlow's global seed with its state. A call that sets seeds gets the numbers that it would get
alone in a process, whatever its neighbours do.

A call starts from what the pool's initializer has seeded, or unseeded. These stay shared, because
no patch can reach them: a function taken out of `random` or `numpy.random` before the pool started,
`numpy.random.mtrand._rand` itself, `tf.random.get_global_generator()`, and a `tf.function` with
random ops that several calls use.
"""

from __future__ import annotations

import functools
import random
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import call_context
from .call_context import CallContext

_PYTHON, _NUMPY, _SEED, _GENERATOR = "random", "numpy", "tensorflow.seed", "tensorflow.random"
_FUNCTIONS, _DRAWN = "tensorflow.functions", "tensorflow.drawn"

_seeded: set[str] = set()
"""What has been seeded outside of calls; calls start from these seeds."""


def patch_python() -> None:
    """Have the functions of `random` use the generator of the current call."""
    for name, original in list(vars(random).items()):
        if getattr(original, "__self__", None) is random._inst:
            setattr(random, name, _dispatched(original, name, _PYTHON, _python))


def patch_numpy() -> None:
    """As `patch_python`, for `numpy.random`, which must be imported."""
    # From sys.modules: while it is being imported, `numpy` has no attribute for it yet.
    package, mtrand = sys.modules["numpy.random"], sys.modules["numpy.random.mtrand"]
    for name, original in list(vars(package).items()):
        method = {"ranf": "random_sample", "sample": "random_sample"}.get(name, name)
        if name in package.__all__ and hasattr(mtrand.RandomState, method):
            dispatched = _dispatched(original, method, _NUMPY, _numpy)
            setattr(package, name, dispatched)
            setattr(mtrand, name, dispatched)


def _dispatched(
    original: Callable[..., Any], name: str, kind: str, own: Callable[[CallContext], Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        call = call_context.current()
        if call is not None:
            return getattr(own(call), name)(*args, **kwargs)
        if name in ("seed", "setstate", "set_state"):
            _seeded.add(kind)
        return original(*args, **kwargs)

    # AutoGraph decides by the module whether to rewrite a function.
    draw.__module__ = __name__
    return draw


_first = threading.Lock()
"""Keeps two threads of a call from making a generator each."""


def _kept(call: CallContext, kind: str, make: Callable[[], Any]) -> Any:
    found = call.state.get(kind)
    if found is None:
        with _first:
            found = call.state.get(kind)
            if found is None:
                found = call.state[kind] = make()
    return found


def _python(call: CallContext) -> random.Random:
    def make() -> random.Random:
        own = random.Random()
        if _PYTHON in _seeded:
            own.setstate(random._inst.getstate())
        return own

    own: random.Random = _kept(call, _PYTHON, make)
    return own


def _numpy(call: CallContext) -> Any:
    def make() -> Any:
        from numpy.random import RandomState, mtrand

        own = RandomState()
        if _NUMPY in _seeded:
            own.set_state(mtrand._rand.get_state())
        return own

    return _kept(call, _NUMPY, make)


def patch_tensorflow() -> None:
    """Give each call its own TensorFlow seed and random state. `tensorflow` must be imported."""
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.ops import gen_random_ops

    _patch_seed(context.Context)
    _note_functions(atomic_function)
    _patch_eager_ops(gen_random_ops)


def _patch_seed(context_class: Any) -> None:
    set_for_all = context_class._set_global_seed

    def generator(context: Any, call: CallContext) -> Any:
        def make() -> random.Random:
            own = random.Random()
            own.setstate(vars(context)["_rng"].getstate())
            return own

        return _kept(call, _GENERATOR, make)

    @functools.wraps(set_for_all)
    def set_global_seed(self: Any, value: Any) -> None:
        call = call_context.current()
        if call is None:
            set_for_all(self, value)
            return
        self._seed = value
        try:
            self._rng = random.Random(value)
        except TypeError:
            import numpy

            self._rng = random.Random(int(numpy.array(value)))
        _reset_random_state(self, call)

    context_class._seed = _per_call("_seed", _SEED, lambda context, _: vars(context).get("_seed"))
    context_class._rng = _per_call("_rng", _GENERATOR, generator)
    context_class._set_global_seed = set_global_seed


def _per_call(name: str, kind: str, first: Callable[[Any, CallContext], Any]) -> property:
    """An attribute of the context that each call can set for itself; `first` is its first value."""

    def get(self: Any) -> Any:
        call = call_context.current()
        if call is None:
            return vars(self).get(name)
        return call.state[kind] if kind in call.state else first(self, call)

    def put(self: Any, value: Any) -> None:
        call = call_context.current()
        if call is None:
            vars(self)[name] = value
        else:
            call.state[kind] = value

    return property(get, put)


def _reset_random_state(context: Any, call: CallContext) -> None:
    """Reset the random state of what the call has run so far.

    TensorFlow forgets every kernel of the process for that, which would disturb the sequences of
    other calls. Instead, the call's own functions are removed and added again, which resets theirs.
    """
    call.state.pop(_DRAWN, None)
    made = [name for name in call.state.get(_FUNCTIONS, ()) if context.has_function(name)]
    definitions = {name: context.get_function_def(name) for name in made}
    for name in _with_random_ops(definitions):
        context.remove_function(name)
        context.add_function_def(definitions[name])


_RANDOM = re.compile("(Random|Truncated|Parameterized|Multinomial|SampleDistorted).*|.*Sampler")
"""Ops whose kernels keep a position in a random sequence."""


def _with_random_ops(definitions: dict[str, Any]) -> set[str]:
    """The functions with random ops, and those that call them."""
    uses = {name: _used(definition) for name, definition in definitions.items()}
    found = {name for name, used in uses.items() if any(map(_RANDOM.fullmatch, used))}
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return found


def _used(definition: Any) -> set[str]:
    """The names of the ops and functions that a function calls."""
    names = set()
    for node in definition.node_def:
        names.add(node.op)
        for value in node.attr.values():
            names.update(one.name for one in (value.func, *value.list.func) if one.name)
    return names


def _note_functions(module: Any) -> None:
    """Remember the functions that each call creates."""
    original = module.from_func_graph

    @functools.wraps(original)
    def from_func_graph(name: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(name, *args, **kwargs)
        call = call_context.current()
        if call is not None:
            call.state.setdefault(_FUNCTIONS, []).append(made.name)
        return made

    module.from_func_graph = from_func_graph


def _patch_eager_ops(module: Any) -> None:
    """Separate the sequences of random ops that run eagerly.

    TensorFlow keeps their state in a kernel, and ops with the same seeds share a kernel: two calls
    that set the same seed would draw from one sequence. So the four important ops are computed
    statelessly, from their seeds and how much of the sequence the call has used, which gives the
    same numbers bit for bit; each of the others gets a function for each call.
    """
    from tensorflow.python.ops import gen_stateless_random_ops_v2 as stateless

    for name, stateless_op in (
        ("random_standard_normal", stateless.stateless_random_normal_v2),
        ("random_uniform", stateless.stateless_random_uniform_v2),
        ("truncated_normal", stateless.stateless_truncated_normal_v2),
        ("random_uniform_int", stateless.stateless_random_uniform_int_v2),
    ):
        setattr(module, name, _computed(getattr(module, name), stateless_op))
    for name in (
        "multinomial",
        "parameterized_truncated_normal",
        "random_gamma",
        "random_poisson_v2",
        "random_shuffle",
    ):
        setattr(module, name, _in_function(getattr(module, name)))


def _caller(seed: Any, seed2: Any) -> CallContext | None:
    """The current call, if an eager op with these seeds runs for it; None without seeds."""
    from tensorflow.python.eager import context

    return call_context.current() if (seed or seed2) and context.executing_eagerly() else None


_PHILOX = 1
_RESERVED = 256
"""How far an op's kernel moves on in its sequence for each number."""


def _computed(original: Callable[..., Any], stateless_op: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(shape: Any, *args: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
        call = _caller(seed, seed2)
        if call is None:
            return original(shape, *args, seed=seed, seed2=seed2, name=name)
        from tensorflow.python.framework import constant_op, dtypes

        drawn = _kept(call, _DRAWN, dict)
        # One kernel for each op, seeds and type.
        kind = (original.__name__, seed, seed2, str(getattr(args[0], "dtype", args[0])))
        used = drawn.get(kind, 0)
        key = constant_op.constant([seed or 0], dtypes.uint64)
        counter = constant_op.constant([used, seed2 or 0], dtypes.uint64)
        made = stateless_op(shape, key, counter, _PHILOX, *args, name=name)
        drawn[kind] = used + _RESERVED * made.shape.num_elements()
        return made

    return draw


def _in_function(original: Callable[..., Any]) -> Callable[..., Any]:
    def make() -> Any:
        from tensorflow.python.eager import def_function

        function = def_function.function(original, autograph=False)
        function._omit_frequent_tracing_warning = True
        return function

    @functools.wraps(original)
    def draw(*args: Any, seed: Any = 0, seed2: Any = 0, **kwargs: Any) -> Any:
        call = _caller(seed, seed2)
        if call is None:
            return original(*args, seed=seed, seed2=seed2, **kwargs)
        function = _kept(call, f"tensorflow.{original.__name__}", make)
        return function(*args, seed=seed, seed2=seed2, **kwargs)

    return draw
