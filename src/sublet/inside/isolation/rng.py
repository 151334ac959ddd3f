"""Random numbers, for each call its own.

Owns what is one for the whole process: Python's `random`, NumPy's old global generator, and
TensorFlow's seed with the state that hangs on it. A call that sets seeds gets what it would get
alone in a process, whatever its neighbours do.

A call starts from what the pool's initializer seeded, or from chance. Not kept apart, because
they are reached without a name that could be answered for each call: a function that was taken out
of `random` or `numpy.random` before the pool started, `numpy.random.mtrand._rand` itself,
`tf.random.get_global_generator()`, and a `tf.function` with random ops that several calls share.
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
"""What has been seeded outside of calls, which calls then start from."""


def share_python() -> None:
    """Let the functions of `random` work on the calling thread's call."""
    for name, original in list(vars(random).items()):
        if getattr(original, "__self__", None) is random._inst:
            setattr(random, name, _dispatched(original, name, _PYTHON, _python))


def share_numpy() -> None:
    """The same for `numpy.random`. Needs `numpy.random` to be imported."""
    # By its name: `numpy` does not know it as its own yet while it is being imported.
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

    # Where AutoGraph looks when it decides whether to rewrite it.
    draw.__module__ = __name__
    return draw


_first = threading.Lock()
"""Two threads of a call must not each make a generator for it."""


def _kept(call: CallContext, kind: str, make: Callable[[], Any]) -> Any:
    found = call.notes.get(kind)
    if found is None:
        with _first:
            found = call.notes.get(kind)
            if found is None:
                found = call.notes[kind] = make()
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


def share_tensorflow() -> None:
    """Give each call a seed and what hangs on it. Needs `tensorflow` to be imported."""
    from tensorflow.python.eager import context
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.ops import gen_random_ops

    _share_seed(context.Context)
    _note_functions(atomic_function)
    _share_eager_ops(gen_random_ops)


def _share_seed(context_class: Any) -> None:
    set_for_all = context_class._set_global_seed

    def seed(self: Any) -> Any:
        call = call_context.current()
        if call is not None and _SEED in call.notes:
            return call.notes[_SEED]
        return vars(self).get("_seed")

    def set_seed(self: Any, value: Any) -> None:
        call = call_context.current()
        if call is None:
            vars(self)["_seed"] = value
        else:
            call.notes[_SEED] = value

    def generator(self: Any) -> Any:
        call = call_context.current()
        if call is None:
            return vars(self)["_rng"]

        def make() -> random.Random:
            own = random.Random()
            own.setstate(vars(self)["_rng"].getstate())
            return own

        return _kept(call, _GENERATOR, make)

    def set_generator(self: Any, value: Any) -> None:
        call = call_context.current()
        if call is None:
            vars(self)["_rng"] = value
        else:
            call.notes[_GENERATOR] = value

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
        _start_anew(self, call)

    context_class._seed = property(seed, set_seed)
    context_class._rng = property(generator, set_generator)
    context_class._set_global_seed = set_global_seed


def _start_anew(context: Any, call: CallContext) -> None:
    """Reset the random state of what the call has run so far.

    TensorFlow does it by forgetting every kernel of the process, also the ones with which others
    are in the middle of a sequence. A function that is taken out and put back loses its own.
    """
    call.notes.pop(_DRAWN, None)
    made = [name for name in call.notes.get(_FUNCTIONS, ()) if context.has_function(name)]
    definitions = {name: context.get_function_def(name) for name in made}
    for name in _random(definitions):
        context.remove_function(name)
        context.add_function_def(definitions[name])


_RANDOM = re.compile("(Random|Truncated|Parameterized|Multinomial|SampleDistorted).*|.*Sampler")
"""Names of ops whose kernels keep a sequence."""


def _random(definitions: dict[str, Any]) -> set[str]:
    """Those functions that have random ops, or call one that has."""
    uses = {name: _used(definition) for name, definition in definitions.items()}
    found = {name for name, used in uses.items() if any(map(_RANDOM.fullmatch, used))}
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return found


def _used(definition: Any) -> set[str]:
    """The ops and functions that a function calls."""
    names = set()
    for node in definition.node_def:
        names.add(node.op)
        for value in node.attr.values():
            names.update(one.name for one in (value.func, *value.list.func) if one.name)
    return names


def _note_functions(module: Any) -> None:
    """Remember which functions a call has made."""
    original = module.from_func_graph

    @functools.wraps(original)
    def from_func_graph(name: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(name, *args, **kwargs)
        call = call_context.current()
        if call is not None:
            call.notes.setdefault(_FUNCTIONS, []).append(made.name)
        return made

    module.from_func_graph = from_func_graph


def _share_eager_ops(module: Any) -> None:
    """A random op that runs eagerly has its state in a kernel, and kernels with the same seeds are
    one: two calls that set the same seed would take turns with one sequence.

    So the four ops that matter are computed from their seeds and how much of the sequence the call
    has used, which gives the same numbers bit for bit; the others get a function for each call."""
    from tensorflow.python.ops import gen_stateless_random_ops_v2 as stateless

    for name, twin in (
        ("random_standard_normal", stateless.stateless_random_normal_v2),
        ("random_uniform", stateless.stateless_random_uniform_v2),
        ("truncated_normal", stateless.stateless_truncated_normal_v2),
        ("random_uniform_int", stateless.stateless_random_uniform_int_v2),
    ):
        setattr(module, name, _computed(getattr(module, name), twin))
    for name in (
        "multinomial",
        "parameterized_truncated_normal",
        "random_gamma",
        "random_poisson_v2",
        "random_shuffle",
    ):
        setattr(module, name, _in_function(getattr(module, name)))


def _caller(seed: Any, seed2: Any) -> CallContext | None:
    """The call for which an op runs now, if its numbers are not left to chance."""
    from tensorflow.python.eager import context

    return call_context.current() if (seed or seed2) and context.executing_eagerly() else None


_PHILOX = 1
_RESERVED = 256
"""What an op's kernel sets aside of its sequence for each number that it makes."""


def _computed(original: Callable[..., Any], twin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(shape: Any, *args: Any, seed: Any = 0, seed2: Any = 0, name: Any = None) -> Any:
        call = _caller(seed, seed2)
        if call is None:
            return original(shape, *args, seed=seed, seed2=seed2, name=name)
        from tensorflow.python.framework import constant_op, dtypes

        drawn = _kept(call, _DRAWN, dict)
        # What tells one kernel from another: the op, its seeds and its type.
        kind = (original.__name__, seed, seed2, str(getattr(args[0], "dtype", args[0])))
        used = drawn.get(kind, 0)
        key = constant_op.constant([seed or 0], dtypes.uint64)
        counter = constant_op.constant([used, seed2 or 0], dtypes.uint64)
        made = twin(shape, key, counter, _PHILOX, *args, name=name)
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
