"""Real calls on one runtime: TensorFlow and Keras in threads, and TensorFlow 1 in sessions.

Each program imports TensorFlow once, runs each function alone in a fork, and then many of them
side by side under a lease.
"""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

COMMON = """
    import functools, json, os, random, sys, tempfile, threading
    import numpy as np
    import keras
    import tensorflow as tf
    from sublet.inside.isolation import call_context
    from sublet.inside.isolation.thread_runner import ThreadRunner

    LIMIT = 120

    def alone(function, *args):
        '''What a function gives in a process of its own.'''
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps(function(*args)).encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as file:
            return json.load(file)

    def together(isolation, *calls, threads=4):
        '''What calls give side by side: a value, or the error as text.'''
        ended = {}
        runner = ThreadRunner(isolation, threads, ended.__setitem__, notify=print)
        for number, call in enumerate(calls):
            runner.start(number, call)
        runner.close()
        return [repr(one.error) if one.error else one.value for _, one in sorted(ended.items())]

    def compared(isolation, repeats, *calls):
        expected = [alone(call) for call in calls]
        found = together(isolation, *calls * repeats)
        return {"expected": expected * repeats, "found": json.loads(json.dumps(found))}
"""

PROGRAMS = {
    "thread": """
    def keras_training(seed):
        keras.utils.set_random_seed(seed)
        rows, targets = np.random.rand(64, 8), np.random.rand(64, 1)
        model = keras.Sequential([
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1)])
        model.compile("adam", "mse")
        seen = model.fit(rows, targets, epochs=2, validation_split=0.25, verbose=0).history
        keras.backend.clear_session()
        return [seen["loss"], seen["val_loss"], model.layers[0].name, keras.layers.Dense(1).name,
                random.random(), float(np.random.rand()), float(keras.random.normal(()))]

    def own_loop(seed):
        '''Every kind of random op with a seed, eager and traced; twice from the same seed.'''
        weights = tf.Variable(tf.ones([4, 4]))

        @tf.function
        def step(row):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.dropout(row @ weights, 0.5) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss + random.random() * np.random.rand()

        random.seed(seed)
        np.random.seed(seed)

        made = []
        for _ in range(2):
            tf.random.set_seed(seed)
            weights.assign(tf.random.normal([4, 4]))
            rows = tf.data.Dataset.from_tensor_slices(tf.random.uniform([16, 4]))
            made.append([
                [float(step(row)) for row in rows.shuffle(16).batch(4)],
                [float(tf.random.normal([], seed=5)) for _ in range(2)],
                [float(tf.random.truncated_normal([3], dtype=tf.float64, seed=6)[0])
                 for _ in range(2)],
                [tf.random.uniform([2], 0, 99, tf.int32, seed=7).numpy().tolist()
                 for _ in range(2)],
                [tf.random.shuffle(tf.range(9), seed=8).numpy().tolist() for _ in range(2)],
                tf.random.categorical([[0.0, 1.0, 2.0]], 5).numpy().tolist(),
            ])
        return made

    def generated(seed):
        '''TensorFlow calls the generator in a thread of its own.'''
        np.random.seed(seed)
        def rows():
            for _ in range(8):
                yield np.random.rand(2)
        spec = tf.TensorSpec([2], tf.float64)
        data = tf.data.Dataset.from_generator(rows, output_signature=spec).batch(2)
        return [float(tf.reduce_sum(batch)) for batch in data]

    def older_keras(seed):
        import tf_keras
        tf_keras.utils.set_random_seed(seed)
        model = tf_keras.Sequential([
            tf_keras.layers.Dense(4), tf_keras.layers.Dropout(0.5), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        rows = np.random.rand(16, 4)
        seen = model.fit(rows, rows[:, :1], verbose=0).history["loss"]
        tf_keras.backend.clear_session()
        return [seen, model.layers[0].name, tf_keras.layers.Dense(1).name]

    def mirrored(seed):
        '''A strategy builds in threads of its own, for a call that holds the build lock.'''
        keras.utils.set_random_seed(seed)
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        return model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0).history["loss"]

    facts = {}
    kinds = keras_training, own_loop, generated, older_keras
    calls = [functools.partial(kind, seed) for seed in (1, 1, 2) for kind in kinds]
    facts["equal"] = compared("thread", 2, *calls)
    facts["strategy"] = together("thread", *[functools.partial(mirrored, 1)] * 2)

    both = threading.Barrier(2, timeout=LIMIT)
    building, stepped = threading.Event(), threading.Event()
    builders, log = [], []

    class Slow(keras.layers.Layer):
        def build(self, shape):
            me = call_context.current()
            log.append(f"{me.number} builds")
            if not building.is_set():
                building.set()
                other, = [one for one in builders if one is not me]
                while not other.waits_for:
                    pass
                log.append("the other waits")
            log.append(f"{me.number} has built")
        def call(self, x):
            return x

    class InStep(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            both.wait()

    def fit_in_step():
        builders.append(call_context.current())
        both.wait()
        model = keras.Sequential([keras.layers.Dense(1), Slow()])
        model.compile("sgd", "mse")
        model.fit(np.ones([12, 2]), np.ones([12, 1]), batch_size=4, callbacks=[InStep()], verbose=0)
        return "both were in each step"

    facts["in step"] = together("thread", fit_in_step, fit_in_step)
    facts["log"] = [line.partition(" ")[2] if line[0].isdigit() else line for line in log]

    class Patient(keras.layers.Layer):
        '''Is built only after another call has made a step.'''
        def build(self, shape):
            building.set()
            assert stepped.wait(LIMIT)
        def call(self, x):
            return x

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                both.wait()
                assert building.wait(LIMIT)
            if batch == 3:
                stepped.set()

    def stepping():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=2, callbacks=[Steps()], verbose=0)
        return "stepped"

    def patient():
        both.wait()
        return list(keras.Sequential([Patient()])(np.ones([1, 1])).shape)

    building.clear()
    facts["while building"] = together("thread", stepping, patient)

    shared = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    together_now = threading.Barrier(4, timeout=LIMIT)

    def predict():
        together_now.wait()
        return [list(shared.predict(np.ones([n, 3]), verbose=0).shape) for n in (1, 5)]

    facts["shared model"] = together("thread", *[predict] * 4)

    def policy():
        keras.config.set_dtype_policy("float64" if call_context.current().number else "float16")
        return keras.layers.Dense(1).compute_dtype

    keras.config.set_dtype_policy("mixed_bfloat16")
    name = lambda: keras.config.dtype_policy().name
    facts["inherited"] = together("thread", name, policy, policy)
    facts["inherited"].append(keras.config.dtype_policy().name)

    def old_switches():
        tf.compat.v1.disable_v2_behavior()
        return tf.executing_eagerly(), str(tf.compat.v1.placeholder(tf.float32, [3]).shape[0])

    facts["switches"] = together("thread", old_switches, tf.executing_eagerly, threads=1)
    print(json.dumps(facts))
    """,
    "session": """
    v1 = tf.compat.v1

    def graph_training(seed):
        v1.reset_default_graph()
        v1.set_random_seed(seed)
        np.random.seed(seed)
        rows = v1.placeholder(tf.float32, [None, 4])
        weights = v1.get_variable("weights", [4, 2], initializer=v1.random_normal_initializer())
        loss = tf.reduce_mean(v1.nn.dropout(tf.matmul(rows, weights), rate=0.4) ** 2)
        step = v1.train.AdamOptimizer(0.1).minimize(loss)
        options = v1.GPUOptions(per_process_gpu_memory_fraction=0.3)
        with v1.Session(config=v1.ConfigProto(gpu_options=options)) as session:
            session.run(v1.global_variables_initializer())
            return [float(session.run([loss, step], {rows: np.random.rand(8, 4)})[0])
                    for _ in range(5)] + [loss.name]

    def monitored(seed):
        v1.set_random_seed(seed)
        count = v1.train.get_or_create_global_step()
        weights = v1.get_variable("weights", [4], initializer=v1.random_normal_initializer())
        loss = tf.reduce_sum(weights ** 2)
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=count)
        made = []
        with v1.train.MonitoredTrainingSession(hooks=[v1.train.StopAtStepHook(3)]) as session:
            while not session.should_stop():
                made.append(float(session.run([loss, step])[0]))
        return made

    def older_keras(seed):
        import tf_keras
        tf_keras.utils.set_random_seed(seed)
        v1.set_random_seed(seed)
        model = tf_keras.Sequential([
            tf_keras.layers.Dense(4, input_shape=(4,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        rows = np.random.rand(16, 4)
        return model.fit(rows, rows[:, :1], verbose=0).history["loss"]

    def in_graph_mode(function, seed):
        tf.compat.v1.disable_eager_execution()
        return function(seed)

    facts = {}
    kinds = graph_training, monitored, older_keras
    calls = [functools.partial(kind, seed) for seed in (1, 1, 2) for kind in kinds]
    expected = [alone(in_graph_mode, call.func, *call.args) for call in calls]
    found = json.loads(json.dumps(together("session", *calls * 3)))
    facts["equal"] = {"expected": expected * 3, "found": found}

    def own_session():
        weights = v1.get_variable("weights", [2], initializer=v1.ones_initializer())
        session = v1.get_default_session()
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver()
        with tempfile.TemporaryDirectory() as place:
            path = saver.save(session, place + "/saved")
            session.run(weights.assign([5.0, 5.0]))
            saver.restore(session, path)
        v1.InteractiveSession()
        left_open.append(v1.Session())
        return weights.eval(session=session).tolist()

    left_open = []
    facts["default session"] = together("session", *[own_session] * 2)
    facts["left open"] = [session._closed for session in left_open]

    common, both = tf.Graph(), threading.Barrier(2, timeout=LIMIT)
    with common.as_default():
        seven = tf.constant(7)

    def run_common():
        both.wait()
        with v1.Session(graph=common) as session:
            return int(session.run(seven))

    def change_common():
        with common.as_default():
            if call_context.current().number == 0:
                tf.constant(1)
                both.wait()
                both.wait()
                return "changed"
            both.wait()
            try:
                return str(tf.constant(2))
            finally:
                both.wait()

    facts["run one graph"] = together("session", run_common, run_common)
    facts["change one graph"] = together("session", change_common, change_common)
    facts["change it later"] = together("session", lambda: tf.constant(3).name)

    def old_switches():
        v1.disable_v2_behavior()
        return v1.placeholder(tf.float32, [3]).shape[0].value

    facts["switches"] = together("session", *[old_switches] * 2) + [tf.executing_eagerly()]
    print(json.dumps(facts))
    """,
}


@pytest.fixture(scope="module")
def findings(start: Callable[..., Any]) -> Callable[[str], dict[str, Any]]:
    """What the program of that name found; both are started before the first is awaited."""
    running = {
        name: start(textwrap.dedent(COMMON) + textwrap.dedent(script))
        for name, script in PROGRAMS.items()
    }

    def wait(name: str) -> dict[str, Any]:
        ended = running[name].wait()
        assert ended.code == 0, ended.err
        found: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
        return {**found, "out": ended.out.splitlines()[:-1], "err": ended.err, "said": ended.said}

    return functools.cache(wait)


Findings = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize("isolation", ["thread", "session"])
def test_calls_side_by_side_give_what_each_gives_alone_in_a_process(
    findings: Findings, isolation: str
) -> None:
    """Losses, names and random numbers of every kind, from equal and from different seeds."""
    equal = findings(isolation)["equal"]
    assert equal["found"] == equal["expected"]
    assert findings(isolation)["out"] == []
    assert "AutoGraph" not in findings(isolation)["err"]


def test_builds_never_overlap_and_steps_do(findings: Findings) -> None:
    """The second call waits while the first one builds; then both are in each step."""
    found = findings("thread")
    assert found["in step"] == ["both were in each step"] * 2
    assert found["log"][:3] == ["builds", "the other waits", "has built"]
    assert set(found["log"]) == {"builds", "the other waits", "has built"}


def test_steps_go_on_while_another_call_builds(findings: Findings) -> None:
    assert findings("thread")["while building"] == ["stepped", [1, 1]]


def test_a_strategy_that_builds_in_threads_of_its_own_does_not_wait_for_itself(
    findings: Findings,
) -> None:
    first, second = findings("thread")["strategy"]
    assert isinstance(first[0], float)
    assert first == second


def test_a_model_that_calls_share_is_built_once_by_whoever_comes_first(findings: Findings) -> None:
    assert findings("thread")["shared model"] == [[[1, 1], [5, 1]]] * 4


def test_a_dtype_policy_is_inherited_by_calls_and_does_not_leave_them(findings: Findings) -> None:
    assert findings("thread")["inherited"] == [
        "mixed_bfloat16",
        "float64",
        "float64",
        "mixed_bfloat16",
    ]


def test_switching_to_tensorflow_1_in_one_call_leaves_the_others_as_they_are(
    findings: Findings,
) -> None:
    """In a pool of threads eager execution goes for that call alone; with sessions, all follow."""
    assert findings("thread")["switches"] == [[False, "3"], True]
    (line,) = [line for line in findings("thread")["said"] if "disable_v2_behavior" in line]
    assert "isolation='session'" in line
    assert findings("session")["switches"] == [3, 3, True]


def test_each_call_has_a_default_session_and_what_it_leaves_open_is_closed(
    findings: Findings,
) -> None:
    assert findings("session")["default session"] == [[1.0, 1.0]] * 2
    assert findings("session")["left open"] == [True] * 2


def test_a_graph_is_run_by_several_calls_and_changed_by_one_at_a_time(findings: Findings) -> None:
    found = findings("session")
    assert found["run one graph"] == [7, 7]
    changed, refused = found["change one graph"]
    assert changed == "changed"
    assert "call 1 (change_common) changes a graph that call 0 (change_common)" in refused
    assert "build it within each call" in refused
    assert found["change it later"] == ["Const:0"]
