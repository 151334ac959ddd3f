"""Sweeps over models under real leases, here and in workers."""

import json

import pytest

from support.sandbox import Sandbox

pytestmark = pytest.mark.slow

_MODELS = """
import json, sys
import keras, numpy as np, sublet
from sublet.inside.sweeping import groups, probe

STEPS, ROWS = int(sys.argv[1]), int(sys.argv[2])
draw = np.random.default_rng(0)
x = draw.normal(size=(ROWS, STEPS, 1)).astype("float32")

def build(rate, units=64):
    layers = keras.layers
    model = keras.Sequential([keras.Input((STEPS, 1)), layers.Dense(units, "relu")])
    model.add(layers.Dense(units, "relu"))
    model.add(layers.GlobalAveragePooling1D())
    model.add(layers.Dense(1))
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model

def swept(way, **space):
    space["rate"] = [0.01, 0.02, 0.03, 0.04]
    return sublet.sweep(build, space, (x, x.mean(1)), epochs=2, batch_size=ROWS // 2, way=way,
        shuffle="each", progress=False)

def told(*results):
    print(json.dumps([[trial.history["loss"] for trial in one.trials] for one in results]))
    print(json.dumps(results[0].ways))
"""
_TOO_LARGE = """
probe.most_in_lease = lambda *_: None  # It would have made smaller stacks at once.
told(swept("fused"), swept("serial"))
"""
_SIDE_BY_SIDE = """
groups.apart = lambda choices, workers: len(choices) == 2
fused = swept("fused", units=[2, 3])
told(fused, swept("packed", units=[2, 3]), swept("serial", units=[2, 3]))
assert fused.best.model.evaluate(x, x.mean(1), verbose=0) >= 0
"""


def _ran(box: Sandbox, program: str, *words: str) -> tuple[list[list[list[float]]], list[str], str]:
    box.write("sweep.py", _MODELS + program)
    ran = box.sublet("run", *words[:2], "sweep.py", *words[2:])
    assert ran.returncode == 0, ran.stderr
    losses, ways = map(json.loads, ran.stdout.splitlines()[-2:])
    return losses, ways, ran.stderr


def test_a_stack_that_does_not_fit_in_its_lease_goes_on_as_two(sandbox: Sandbox) -> None:
    (fused, serial), _, said = _ran(sandbox, _TOO_LARGE, "--memory", "150MiB", "64", "2048")
    assert "a stack of 4 models does not fit in memory: it goes on as 2 and 2" in said
    for one, other in zip(fused, serial, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_groups_that_train_as_one_in_workers_and_packed_trials_end_as_alone(
    sandbox: Sandbox,
) -> None:
    (apart, packed, serial), ways, _ = _ran(sandbox, _SIDE_BY_SIDE, "--memory", "1GiB", "2", "64")
    assert len(ways) == 2
    assert all("4 trials fused" in way and "beside other architectures" in way for way in ways)
    for one, two, other in zip(apart, packed, serial, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
        assert two == pytest.approx(other, rel=1e-4)
