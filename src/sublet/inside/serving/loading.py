"""SavedModels become loaded models.

Owns opening a SavedModel in a session of its own, and closing it. Decides nothing: what to load
and when is the store's. Both formats go through a session, as in TensorFlow Serving, and not
through `tf.saved_model.load`: that builds every object of a model in Python and takes four to
eight times as long, a call of a small model takes seven times as long, models of TensorFlow 1 with
variables as outputs cannot be loaded, and their state is never given back. Each session has
resources of its own, so models with equal names of variables, tables or queues do not meet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.inside.serving import saved
from sublet.inside.serving.signatures import Array, Bound, Lazily, Run, State, batchable

_INIT = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_ASSETS = "saved_model_assets"


class Opened:
    """A model in memory, until it is closed."""

    def __init__(self, signatures: dict[str, Bound], session: Any) -> None:
        self.signatures = signatures
        self._session = session

    def close(self) -> None:
        """Give everything back. Calls that run are cancelled."""
        if self._session is not None:
            self._session.close()
            self._session = None


class Opening:
    """The opening of a SavedModel: `run` in one thread, `cancel` from any other."""

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = path
        self._tags = frozenset(options.get("tags") or ("serve",))
        self._options = options
        self._session: Any = None
        self._cancelled = False

    def run(self) -> Opened:
        import tensorflow as tf

        meta = self._meta_graph()
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(
                meta.graph_def, name="", producer_op_list=meta.meta_info_def.stripped_op_list
            )
        session = self._session = tf.compat.v1.Session(graph=graph)
        try:
            self._restore(session, meta)
            self._initialize(session, meta)
            return Opened(self._signatures(session, meta), session)
        except BaseException:
            session.close()
            raise

    def cancel(self) -> None:
        """Stop what can be stopped: what TensorFlow runs, not what it waits for outside."""
        self._cancelled = True
        if self._session is not None:
            self._session.close()

    def _meta_graph(self) -> Any:
        from tensorflow.python.saved_model import loader_impl

        model = loader_impl.parse_saved_model(self._path)
        for meta in model.meta_graphs:
            if frozenset(meta.meta_info_def.tags) == self._tags:
                return meta
        there = "; ".join(", ".join(meta.meta_info_def.tags) for meta in model.meta_graphs)
        raise ServingError(
            f"{self._path} has no graph with the tags {', '.join(sorted(self._tags))}, only: "
            f"{there or 'none'}. Name them in the option `tags`, or export the model again.",
            Code.FAILED_PRECONDITION,
        )

    def _restore(self, session: Any, meta: Any) -> None:
        saver = meta.saver_def
        prefix = os.path.join(self._path, "variables", "variables")
        if saver.restore_op_name and os.path.exists(prefix + ".index"):
            session.run(
                session.graph.get_operation_by_name(saver.restore_op_name),
                {saver.filename_tensor_name: prefix},
            )

    def _initialize(self, session: Any, meta: Any) -> None:
        name = _initializer(meta)
        if name is not None:
            session.run(session.graph.get_operation_by_name(name), self._assets(meta))

    def _assets(self, meta: Any) -> dict[str, str]:
        assets = list(meta.asset_file_def)
        if not assets and _ASSETS in meta.collection_def:
            from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef

            for packed in meta.collection_def[_ASSETS].any_list.value:
                assets.append(AssetFileDef())
                packed.Unpack(assets[-1])
        return {
            asset.tensor_info.name: os.path.join(self._path, "assets", asset.filename)
            for asset in assets
        }

    def _signatures(self, session: Any, meta: Any) -> dict[str, Bound]:
        described = {
            name: _signature(definition)
            for name, definition in meta.signature_def.items()
            if name != _INIT
        }
        state = State(meta.graph_def, _is_stateful)
        stateful = self._options.get("stateful")
        if stateful is None:
            stateful = any(state.changed_by(one) for one in described.values())
        forced = self._options.get("batchable")
        return {
            name: Bound(
                name,
                one,
                Lazily(lambda one=one: _callable(session, one)),  # type: ignore[misc]
                bool(stateful),
                not stateful and (batchable(one) if forced is None else bool(forced)),
            )
            for name, one in described.items()
        }


def _callable(session: Any, signature: saved.Signature) -> Run:
    """The shortest way into a session that Python has: arrays in, arrays out."""
    from tensorflow.core.protobuf.config_pb2 import CallableOptions
    from tensorflow.python.client import pywrap_tf_session

    options = CallableOptions(
        feed=[tensor.name for tensor in signature.inputs.values()],
        fetch=[tensor.name for tensor in signature.outputs.values()],
    )
    handle = session._make_callable_from_options(options)
    run, native, number = pywrap_tf_session.TF_SessionRunCallable, session._session, handle._handle

    def call(inputs: tuple[Array, ...]) -> list[Array]:
        return run(native, number, inputs, None)  # type: ignore[no-any-return]

    # Released with what it was made for.
    call.handle = handle  # type: ignore[attr-defined]
    return call


def _signature(definition: Any) -> saved.Signature:
    sides = [
        {
            name: saved.Tensor(
                info.name,
                info.dtype,
                None
                if info.tensor_shape.unknown_rank or not info.HasField("tensor_shape")
                else tuple(dim.size for dim in info.tensor_shape.dim),
            )
            for name, info in side.items()
        }
        for side in (definition.inputs, definition.outputs)
    ]
    return saved.Signature(definition.method_name, *sides)


def _initializer(meta: Any) -> str | None:
    """The operation that a model wants to have run when it is loaded."""
    if _INIT in meta.signature_def:
        return str(meta.signature_def[_INIT].outputs[_INIT].name)
    for name in _INIT_COLLECTIONS:
        nodes = meta.collection_def[name].node_list.value if name in meta.collection_def else ()
        if len(nodes) == 1:
            return str(nodes[0])
    return None


def _is_stateful(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    if definition is None or definition.is_stateful:
        return True
    # Operations of TensorFlow 1 that write to a variable take a reference to it.
    return any(argument.is_ref for argument in definition.input_arg)
