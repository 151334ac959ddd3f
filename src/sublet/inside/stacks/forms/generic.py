"""The form of layers that have none of their own: what the layer does for one model, turned into
what it does for all by TensorFlow (`tf.vectorized_map`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import backend, layers, tree

from ...tensor_notes import logits_of, mask_of, with_logits, with_mask
from ..trainer import CannotStack
from ..values import Value
from .site import Site


def call(site: Site, args: Any, kwargs: Any) -> Any:
    """What the layer puts out, a structure of Values."""
    if not (site.variables or site.own_numbers() or any(v.stacked for v in values(args, kwargs))):
        return shared(site, args, kwargs)
    try:
        return vectorised(site, args, kwargs)
    except CannotStack:
        # Of Keras' own layers it is known that they do nothing else than compute.
        if not type(site.layer).__module__.startswith("keras.src."):
            raise
    return each(site, args, kwargs)


def shared(site: Site, args: Any, kwargs: Any) -> Any:
    """Call a layer once, where it computes the same in all models."""
    args, kwargs = replaced((args, kwargs), lambda value: value.plain)
    return tree.map_structure(shared_value, invoke(site, args, kwargs))


def vectorised(site: Site, args: Any, kwargs: Any) -> Any:
    """Compute all models at once. Raises CannotStack if TensorFlow cannot."""
    given = [value for value in values(args, kwargs) if value.stacked]
    variables, chosen = site.variables, site.own_numbers()
    elems = (
        [value.tensor for value in given],
        [value.mask.along(site.models) for value in given if value.mask is not None],
        [value.logits for value in given],
        [site.value(one) for one in variables],
        [tf.convert_to_tensor(site.numbers.variables[place]) for place in chosen],
    )
    found: dict[str, Any] = {}

    def of_one(slices: Any) -> Any:
        tensors, masks, logits, state, numbers = slices
        masks = iter(masks)
        one = {
            id(value): with_logits(
                with_mask(tensor, None if value.mask is None else next(masks)), hung
            )
            for value, tensor, hung in zip(given, tensors, logits, strict=True)
        }
        args_, kwargs_ = replaced(
            (args, kwargs), lambda value: one[id(value)] if value.stacked else value.plain
        )
        mapping = list(zip(variables, state, strict=True))
        with (
            site.numbers.put(chosen, numbers),
            backend.StatelessScope(mapping, collect_losses=True) as scope,
        ):
            before = [scope.get_current_value(variable) for variable in variables]
            with _tables(site) as found["repeated"]:
                outputs = invoke(site, args_, kwargs_)
            flat = tree.flatten(outputs)
            losses = [tf.reduce_sum(tf.cast(loss, backend.floatx())) for loss in scope.losses]
            after = [scope.get_current_value(variable) for variable in variables]
        changed = [new is not old for new, old in zip(after, before, strict=True)]
        found["outputs"], found["changed"] = outputs, changed
        masks = [mask_of(tensor) for tensor in flat]
        found["masked"] = [mask is not None for mask in masks]
        moved = [new for new, is_new in zip(after, changed, strict=True) if is_new]
        hung = [logits_of(tensor) for tensor in flat]
        return flat, [mask for mask in masks if mask is not None], hung, moved, losses

    try:
        flat, masks, hung, moved, losses = tf.vectorized_map(
            of_one, elems, fallback_to_while_loop=False
        )
    except (ValueError, NotImplementedError, TypeError, AssertionError) as wrong:
        raise cannot(site, wrong) from wrong
    if found["repeated"]:
        raise CannotStack(
            site.name,
            f"{type(site.layer).__name__} has the Embedding {found['repeated'][0]} within it: "
            "optimizers would take other steps for rows that occur twice; put it into the model",
        )
    changed = [one for one, is_new in zip(variables, found["changed"], strict=True) if is_new]
    site.changed.update(zip(map(id, changed), moved, strict=True))
    site.losses += losses
    masks = iter(masks)
    results = [
        Value(tensor, True, Value(next(masks), True) if masked else None, logits)
        for tensor, masked, logits in zip(flat, found["masked"], hung, strict=True)
    ]
    return tree.pack_sequence_as(found["outputs"], results)


@contextlib.contextmanager
def _tables(site: Site) -> Iterator[list[str]]:
    """The names of Embeddings within a layer of which rows may be taken twice: of these, gradients
    as TensorFlow vectorises them are not the same to an optimizer (see `embedding`)."""
    repeated: list[str] = []

    def noting(table: Any) -> Any:
        def call(inputs: Any) -> Any:
            rows = tf.get_static_value(inputs)
            if rows is None or len(np.unique(rows)) < rows.size:
                repeated.append(table.name)
            return type(table).call(table, inputs)

        return call

    within = getattr(site.layer, "_flatten_layers", lambda **_: ())(include_self=False)
    tables = [one for one in within if isinstance(one, layers.Embedding) and one.trainable]
    try:
        for one in tables:
            object.__setattr__(one, "call", noting(one))
        yield repeated
    finally:
        for one in tables:
            vars(one).pop("call", None)


def each(site: Site, args: Any, kwargs: Any) -> Any:
    """Call the layer for one model after the other, in one graph."""
    variables, chosen = site.variables, site.own_numbers()
    states = [tf.unstack(site.value(one)) for one in variables]
    numbers = [tf.unstack(tf.convert_to_tensor(site.numbers.variables[one])) for one in chosen]
    found, after, losses = [], [], []
    for place in range(site.models):
        given = replaced((args, kwargs), lambda value, place=place: value.of(place))
        mapping = [(one, state[place]) for one, state in zip(variables, states, strict=True)]
        with (
            site.numbers.put(chosen, [one[place] for one in numbers]),
            backend.StatelessScope(mapping, collect_losses=True) as scope,
        ):
            found.append(tree.map_structure(shared_value, invoke(site, *given)))
            after.append([scope.get_current_value(one) for one in variables])
            losses.append([tf.reduce_sum(tf.cast(loss, backend.floatx())) for loss in scope.losses])
    for variable, *new in zip(variables, *after, strict=True):
        site.changed[id(variable)] = tf.stack(new)
    site.losses += [tf.stack(parts) for parts in zip(*losses, strict=True)]
    return tree.map_structure(_stacked, *found)


def _stacked(*parts: Value) -> Value:
    masks = [part.mask.tensor for part in parts if part.mask is not None]
    mask = Value(tf.stack(masks), True) if masks else None
    logits = {kind: tf.stack([part.logits[kind] for part in parts]) for kind in parts[0].logits}
    return Value(tf.stack([part.tensor for part in parts]), True, mask, logits)


def invoke(site: Site, args: Any, kwargs: Any) -> Any:
    """Call the layer as Keras does within a model."""
    from keras.src.models.functional import operation_fn

    return operation_fn(site.layer, training=site.training)(*args, **kwargs)


def values(*structures: Any) -> list[Value]:
    """The Values in the arguments of a call."""
    return [one for one in tree.flatten(structures) if isinstance(one, Value)]


def replaced(structure: Any, by: Any) -> Any:
    """The arguments with something else in place of each Value."""
    return tree.map_structure(lambda one: by(one) if isinstance(one, Value) else one, structure)


def cannot(site: Site, wrong: Exception) -> CannotStack:
    """Why a layer cannot be turned into one of all models."""
    reason = str(wrong).strip().partition("\n")[0][:200]
    kind = type(site.layer).__name__
    return CannotStack(site.name, f"{kind} cannot be computed for several models at once: {reason}")


def shared_value(tensor: Any) -> Value:
    """What a layer puts out, with its mask."""
    mask = mask_of(tensor)
    kept = None if mask is None else Value(mask, False)
    return Value(tensor, False, kept, logits_of(tensor))
