"""SavedModels become loaded models.

Owns opening a SavedModel in a session of its own, and closing it. Decides nothing: what to load
and when is the store's.

Both formats go through a session, as in TensorFlow Serving, and not through `tf.saved_model.load`.
That builds every object of a model in Python, and a call of a small model takes seven times as
long; it refuses models of TensorFlow 1 that have variables for outputs, and never gives the state
of others back. A closed session gives everything back at once: 200 models of 40 MiB one after the
other left the process 1.1 MiB larger. And each session has resources of its own, so that models
with equal names of variables, tables or queues do not meet.

The graph goes from the file into TensorFlow without becoming Python objects, and only the part
that is needed: other models are served by this interpreter meanwhile.
"""

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from sublet.channel.codes import Code
from sublet.channel.tensors import Array
from sublet.engine import compute_threads, op_libraries
from sublet.engine.graphs import Graph
from sublet.engine.model_opening import Opened
from sublet.engine.savedmodel_proto import Signature, TensorSpec
from sublet.engine.signatures import DEFAULT, Bound, Gate, Run, batchable
from sublet.engine.warmup import made_up
from sublet.errors import ServingError

_INIT = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_ASSETS = "saved_model_assets"
_CACHED = 8 << 20
"""Bytes of variables up to which a model may be small."""
_CALLER = -1
"""Operations run in the thread that calls: a third less for a small model than handing them to a
pool. Each operation still spreads over the cores, unless the model is small
(`compute_threads.py`)."""


class _Session:
    """A session with a model in it. TensorFlow's own is only asked for its handle."""

    def __init__(self, graph: Any, one_thread: bool) -> None:
        self._session = compute_threads.session(graph, one_thread)
        with contextlib.suppress(AttributeError):
            self._session._extend_graph()
        self.gate = Gate()
        self.signatures: dict[str, Bound] = {}

    def prepare(self, feed: list[str], fetch: list[str], target: list[str]) -> Run:
        try:
            return self._short(feed, fetch, target)
        except (ImportError, AttributeError):
            return self._public(feed, fetch, target)

    def _short(self, feed: list[str], fetch: list[str], target: list[str]) -> Run:
        """The shortest way into a session that Python has: none that TensorFlow promises."""
        from tensorflow.core.protobuf.config_pb2 import CallableOptions
        from tensorflow.python.client import pywrap_tf_session

        options = CallableOptions(feed=feed, fetch=fetch, target=target)
        options.run_options.inter_op_thread_pool = _CALLER
        native = self._session._session
        run = pywrap_tf_session.TF_SessionRunCallable
        made = type(self._session)._Callable(self._session, options)

        def call(inputs: tuple[Array, ...], made: Any = made) -> list[Array]:
            # `made` is kept: its end releases the handle.
            return run(native, made._handle, inputs, None)  # type: ignore[no-any-return]  # No types.

        return call

    def _public(self, feed: list[str], fetch: list[str], target: list[str]) -> Run:
        """The promised way, for a TensorFlow that lacks the short one. It takes several times as
        long, and refuses inputs of another shape than the graph names."""
        from tensorflow.compat.v1 import RunOptions

        options = RunOptions(inter_op_thread_pool=_CALLER)

        def call(inputs: tuple[Array, ...]) -> list[Array]:
            fed = dict(zip(feed, inputs, strict=True))
            made = self._session.run([*fetch, *target], feed_dict=fed, options=options)
            return made[: len(fetch)]  # type: ignore[no-any-return]  # No types.

        return call

    def cancel(self) -> None:
        self._session.close()

    def close(self) -> None:
        self.gate.close()
        self._session.close()
        # They lead back here; unbound, all of it ends without the garbage collector.
        for bound in self.signatures.values():
            bound.unbind()


class SavedModelOpening:
    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path = path
        self._tags = frozenset(options.get("tags") or ("serve",))
        self._options = options
        self._session: _Session | None = None
        self._cancelled = False

    def open(self) -> Opened:
        op_libraries.load(self._options.get("libraries") or ())
        meta = self._meta_graph()
        signatures = {
            name: Signature.from_message(definition)
            for name, definition in meta.signature_def.items()
            if name != _INIT and _dense(definition)
        }
        if not signatures:
            raise ServingError(
                f"{self._path} has no signature that can be called. "
                "Export the model with `signatures=`.",
                Code.FAILED_PRECONDITION,
            )
        restore, initialize = meta.saver_def.restore_op_name, _initializer(meta)
        assets = self._assets(meta)
        graph = Graph(meta.graph_def)
        roots = [tensor.name for one in signatures.values() for tensor in _tensors(one)]
        roots += [restore, meta.saver_def.filename_tensor_name, initialize or "", *assets]
        part = graph.part(root for root in roots if root)
        imported = _imported(part, meta.meta_info_def.stripped_op_list)
        prefix = os.path.join(self._path, "variables", "variables")

        def opened(one_thread: bool) -> _Session:
            session = self._session = _Session(imported, one_thread)
            try:
                if restore and os.path.exists(prefix + ".index"):
                    run = session.prepare([meta.saver_def.filename_tensor_name], [], [restore])
                    run((_text(prefix),))
                if initialize and not _does_nothing(part, initialize):
                    run = session.prepare(list(assets), [], [initialize])
                    run(tuple(map(_text, assets.values())))
                self._bind(session, graph, signatures)
                if self._cancelled:
                    raise ServingError("Loading was cancelled.", Code.CANCELLED)
                return session
            except BaseException:
                session.close()
                raise

        if compute_threads.can_be_one() and self._may_be_quick(graph):
            session = opened(one_thread=True)
            if _quick(session.signatures):
                for bound in session.signatures.values():
                    bound.quick = True
                return session
            session.close()
        return opened(one_thread=False)

    def cancel(self) -> None:
        self._cancelled = True
        if self._session is not None:
            self._session.cancel()

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

    def _may_be_quick(self, graph: Graph) -> bool:
        """Whether it is worth a try: what is read for each call fits into a processor's cache."""
        size = 0
        with contextlib.suppress(OSError), os.scandir(os.path.join(self._path, "variables")) as all:
            size = sum(one.stat().st_size for one in all)
        return size <= _CACHED and not compute_threads.loops(graph.operations())

    def _assets(self, meta: Any) -> dict[str, str]:
        """Which files the initializer reads, by the tensor that gets the name."""
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

    def _bind(self, session: _Session, graph: Graph, signatures: dict[str, Signature]) -> None:
        stateful = self._options.get("stateful")
        if stateful is None:
            stateful = any(
                graph.changed_by(
                    [tensor.name for tensor in one.outputs.values()],
                    [tensor.name for tensor in one.inputs.values()],
                    _is_stateful,
                )
                for one in signatures.values()
            )
        forced = self._options.get("batchable")
        for name, one in signatures.items():
            free = batchable(one) if forced is None else bool(forced)
            session.signatures[name] = Bound(
                name, one, _lazily(session, one), session.gate, stateful, free
            )
            session.signatures[name].batchable &= not stateful


def _quick(signatures: Mapping[str, Bound]) -> bool:
    """Whether one row takes hardly any time, as far as can be tried without harm."""
    bound = signatures.get(DEFAULT) or next(iter(signatures.values()))
    inputs = None if bound.stateful else made_up(bound)
    if inputs is None:
        return False
    try:
        return compute_threads.quick(lambda: bound.call(inputs))
    except Exception:
        return False  # Zeros are not what the model was made for.


def _lazily(session: _Session, signature: Signature) -> Run:
    """A run that is prepared when it is first needed; many signatures are never called."""
    feed = [tensor.name for tensor in signature.inputs.values()]
    fetch = [tensor.name for tensor in signature.outputs.values()]
    prepare = functools.cache(lambda: session.prepare(feed, fetch, []))
    return lambda inputs: prepare()(inputs)


def _imported(definition: Any, producer: Any) -> Any:
    try:
        return _imported_short(definition, producer)
    except (ImportError, AttributeError):
        import tensorflow as tf

        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(definition, name="", producer_op_list=producer)
        return graph


def _imported_short(definition: Any, producer: Any) -> Any:
    """Python knows nothing of the graph but the names."""
    import tensorflow as tf
    from tensorflow.python.client import pywrap_tf_session as native
    from tensorflow.python.framework import c_api_util, importer

    # Attributes that a newer TensorFlow writes and that have the value of old.
    importer._RemoveDefaultAttrs(producer, definition)
    graph = tf.Graph()
    options = c_api_util.ScopedTFImportGraphDefOptions()
    native.TF_ImportGraphDefOptionsSetPrefix(options.options, "")
    data = native.TF_NewBufferFromString(definition.SerializeToString())
    try:
        with graph._c_graph.get() as handle:
            c_api_util.ScopedTFImportGraphDefResults(
                native.TF_GraphImportGraphDefWithResults(handle, data, options.options)
            )
    finally:
        native.TF_DeleteBuffer(data)
    return graph


def _text(text: str) -> Array:
    return np.array(os.fsencode(text), dtype=object)


def _tensors(signature: Signature) -> list[TensorSpec]:
    return [*signature.inputs.values(), *signature.outputs.values()]


def _dense(definition: Any) -> bool:
    """Sparse and ragged tensors cannot be sent, so what wants them cannot be called."""
    return all(
        info.WhichOneof("encoding") in ("name", None)
        for side in (definition.inputs, definition.outputs)
        for info in side.values()
    )


def _initializer(meta: Any) -> str | None:
    """The operation that a model wants to have run when it is loaded."""
    if _INIT in meta.signature_def:
        return str(meta.signature_def[_INIT].outputs[_INIT].name)
    for name in _INIT_COLLECTIONS:
        if name in meta.collection_def and len(meta.collection_def[name].node_list.value) == 1:
            return str(meta.collection_def[name].node_list.value[0])
    return None


def _does_nothing(graph: Any, name: str) -> bool:
    return any(node.name == name and node.op == "NoOp" and not node.input for node in graph.node)


def _is_stateful(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    if definition is None or definition.is_stateful:
        return True
    # Operations of TensorFlow 1 that write to a variable take a reference to it.
    return any(argument.is_ref for argument in definition.input_arg)
