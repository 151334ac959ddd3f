"""SavedModels for tests, written by TensorFlow: to be called where it runs."""

import gc
from pathlib import Path
from typing import Any


def weights(place: Path, mib: int = 16, scale: float = 1.0) -> str:
    """TensorFlow 2: y = scale * x, with a variable of so many MiB."""
    import tensorflow as tf

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.fill([mib << 18], float(scale)))

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def serve(self, x: Any) -> Any:
            return {"y": x * self.weights[0]}

    model = Model()
    tf.saved_model.save(model, str(place), signatures={"serving_default": model.serve})
    del model
    # Its variables are in the pool that tests measure, and in reference cycles.
    gc.collect()
    return str(place)


def counting(place: Path) -> str:
    """TensorFlow 2: keeps the last input, and gives the sum of it and the one before."""
    import tensorflow as tf

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = tf.Variable(tf.zeros([64]))

        @tf.function(input_signature=[tf.TensorSpec([64], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def serve(self, x: Any) -> Any:
            total = x + self.last
            self.last.assign(x)
            return {"total": total}

    model = Model()
    tf.saved_model.save(model, str(place), signatures={"serving_default": model.serve})
    del model
    # Its variables are in the pool that tests measure, and in reference cycles.
    gc.collect()
    return str(place)


def dense(place: Path, size: int) -> str:
    """TensorFlow 2: y = x @ w, with a square of weights."""
    import tensorflow as tf

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.ones([size, size]))

        @tf.function(input_signature=[tf.TensorSpec([None, size], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def serve(self, x: Any) -> Any:
            return {"y": x @ self.weights}

    model = Model()
    tf.saved_model.save(model, str(place), signatures={"serving_default": model.serve})
    del model
    gc.collect()  # As above.
    return str(place)


def looping(place: Path) -> str:
    """TensorFlow 2: doubles until it is above 100, and so never ends for 0."""
    import tensorflow as tf

    model = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def serve(x: Any) -> Any:
        (y,) = tf.while_loop(lambda y: tf.reduce_max(y) < 100, lambda y: (y * 2,), (x,))
        return {"y": y}

    model.serve = serve
    tf.saved_model.save(model, str(place), signatures={"serving_default": serve})
    return str(place)


def table(place: Path, words: list[str]) -> str:
    """TensorFlow 1: the number of a word, from an asset; all have a table of the same name."""
    import tensorflow as tf

    v1 = tf.compat.v1
    vocabulary = place.parent / f"{place.name}-words.txt"
    vocabulary.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_text("\n".join(words))
    with tf.Graph().as_default(), v1.Session() as session:
        file = tf.constant(str(vocabulary))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, file)
        numbers = v1.raw_ops.HashTableV2(
            key_dtype=tf.string, value_dtype=tf.int64, shared_name="words"
        )
        fill = v1.raw_ops.InitializeTableFromTextFileV2(
            table_handle=numbers, filename=file, key_index=-2, value_index=-1
        )
        word = v1.placeholder(tf.string, [None], name="word")
        number = v1.raw_ops.LookupTableFindV2(
            table_handle=numbers, keys=word, default_value=tf.constant(-1, tf.int64)
        )
        _write(place, session, {"word": word}, {"number": number}, fill)
    return str(place)


def endless(place: Path) -> str:
    """TensorFlow 1: its initializer never ends."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        loop = v1.while_loop(lambda i: i >= 0, lambda i: tf.maximum(i, 1), [tf.constant(1)])
        _write(place, session, {"x": x}, {"y": x * 2}, loop.op)
    return str(place)


def reading(place: Path, file: Path) -> str:
    """TensorFlow 1: its initializer reads a file."""
    import tensorflow as tf

    v1 = tf.compat.v1
    file.write_text("")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        _write(place, session, {"x": x}, {"y": x * 2}, tf.io.read_file(str(file)).op)
    return str(place)


def exiting(place: Path) -> str:
    """TensorFlow 1: its initializer ends the process."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        end = v1.raw_ops.Abort(error_msg="as asked", exit_without_error=True)
        _write(place, session, {"x": x}, {"y": x * 2}, end)
    return str(place)


def reader(place: Path) -> str:
    """TensorFlow 1: gives the contents of the file that is named. Any model can do this."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        path = v1.placeholder(tf.string, [], name="path")
        _write(place, session, {"path": path}, {"text": tf.io.read_file(path)}, tf.no_op())
    return str(place)


def _write(place: Path, session: Any, inputs: Any, outputs: Any, initializer: Any) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    builder = v1.saved_model.builder.SavedModelBuilder(str(place))
    signature = v1.saved_model.signature_def_utils.predict_signature_def(inputs, outputs)
    builder.add_meta_graph_and_variables(
        session,
        ["serve"],
        {"serving_default": signature},
        main_op=initializer,
        assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
    )
    builder.save()
