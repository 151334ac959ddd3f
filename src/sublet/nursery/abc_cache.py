"""Fills the caches of abstract classes with the checks that every TensorFlow program makes.

An abstract class remembers each answer of `issubclass`, but first asks all of its subclasses, and
TensorFlow has hundreds. A later `register` invalidates the cache, so no answer can become wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

_ABSTRACT = (
    "collections.abc:Mapping MappingView Sequence",
    "tensorflow.python.framework.composite_tensor:CompositeTensor",
    "tensorflow.python.framework.dtypes:DType",
    "tensorflow.python.framework.tensor_shape:TensorShape",
    "tensorflow.python.framework.type_spec:TypeSpec",
    "tensorflow.python.ops.variables:Variable",
    "tensorflow.python.types.core:TensorProtocol",
    "tensorflow.python.types.data:DatasetV2",
    "tensorflow.python.types.trace:SupportsTracingProtocol TraceType",
    "tensorflow.python.util.custom_nest_protocol:CustomNestProtocol",
)
_CONCRETE = (
    "builtins:bool bytes dict float int list str tuple",
    "types:FunctionType NoneType",
    "numpy:ndarray",
    "keras.src.backend:Variable",
    "keras.src.layers:Conv2D Dense Embedding Flatten InputLayer LSTM MaxPooling2D",
    "tensorflow.python.data.ops.concatenate_op:_ConcatenateDataset",
    "tensorflow.python.data.ops.dataset_ops:DatasetSpec _OptionsDataset",
    "tensorflow.python.data.ops.flat_map_op:_FlatMapDataset",
    "tensorflow.python.data.ops.from_tensor_slices_op:_TensorSliceDataset",
    "tensorflow.python.data.ops.from_tensors_op:_TensorDataset",
    "tensorflow.python.data.ops.iterator_ops:IteratorSpec OwnedIterator",
    "tensorflow.python.data.ops.map_op:_MapDataset _ParallelMapDataset",
    "tensorflow.python.data.ops.optional_ops:OptionalSpec _OptionalImpl",
    "tensorflow.python.data.ops.prefetch_op:_PrefetchDataset",
    "tensorflow.python.data.ops.range_op:_RangeDataset",
    "tensorflow.python.data.ops.repeat_op:_RepeatDataset",
    "tensorflow.python.data.ops.zip_op:_ZipDataset",
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:UnliftedInitializerVariable",
    "tensorflow.python.framework.dtypes:DType",
    "tensorflow.python.framework.ops:EagerTensor SymbolicTensor",
    "tensorflow.python.framework.tensor:TensorSpec",
    "tensorflow.python.framework.tensor_shape:TensorShape",
    "tensorflow.python.ops.resource_variable_ops:ResourceVariable",
    "tensorflow.python.ops.tensor_array_ops:TensorArray",
    "tensorflow.python.types.core:Tensor TensorProtocol",
)


def fill() -> None:
    """Check each pair; classes that this TensorFlow lacks are left out."""
    concrete = list(_classes(_CONCRETE))
    for abstract in _classes(_ABSTRACT):
        for one in concrete:
            try:
                issubclass(one, abstract)
            except TypeError:
                break


def _classes(lines: tuple[str, ...]) -> Iterator[type]:
    for line in lines:
        place, _, names = line.partition(":")
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        for name in names.split():
            found = getattr(module, name, None)
            if isinstance(found, type):
                yield found
