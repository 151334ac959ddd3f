"""Golden protos: what a program configured, and what TensorFlow gets. No GPU is needed for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sublet.formats.lease import MIB, Card, LeaseTerms
from sublet.inside.config import bound, divide

pytestmark = pytest.mark.slow

config_pb2 = pytest.importorskip("tensorflow.core.protobuf.config_pb2")
text_format = pytest.importorskip("google.protobuf.text_format")

CASES: list[tuple[str, str, list[str]]] = [
    (
        "",
        "gpu_options { allow_growth: true"
        " experimental { virtual_devices { memory_limit_mb: 1024 } } }",
        [],
    ),
    (
        # What eager execution makes of `set_memory_growth`.
        "device_count { key: 'GPU' value: 1 }"
        " gpu_options { allow_growth: true visible_device_list: '0' }",
        "device_count { key: 'GPU' value: 1 }"
        " gpu_options { allow_growth: true visible_device_list: '0'"
        " experimental { virtual_devices { memory_limit_mb: 1024 } } }",
        [],
    ),
    (
        "device_count { key: 'GPU' value: 0 }",
        "device_count { key: 'GPU' value: 0 }",
        [],
    ),
    (
        # Logical CPUs, and a GPU that is left as it is.
        "gpu_options { experimental { virtual_devices { } } }",
        "gpu_options { allow_growth: true"
        " experimental { virtual_devices { memory_limit_mb: 1024 } } }",
        [],
    ),
    (
        "gpu_options { experimental { virtual_devices {"
        " memory_limit_mb: 256 memory_limit_mb: 512 priority: 0 priority: 1 } } }",
        "gpu_options { allow_growth: true experimental { virtual_devices {"
        " memory_limit_mb: 256 memory_limit_mb: 512 priority: 0 priority: 1 } } }",
        [],
    ),
    (
        "gpu_options { experimental { virtual_devices {"
        " memory_limit_mb: 3072 memory_limit_mb: 1024 } } }",
        "gpu_options { allow_growth: true experimental { virtual_devices {"
        " memory_limit_mb: 768 memory_limit_mb: 256 } } }",
        [
            "logical GPUs of 3072 + 1024 MiB become 768 + 256 MiB:"
            " together they fit the ceiling of this lease"
        ],
    ),
    (
        "gpu_options { per_process_gpu_memory_fraction: 0.1 }",
        "gpu_options { allow_growth: true"
        " experimental { virtual_devices { memory_limit_mb: 819 } } }",
        [],
    ),
    (
        "gpu_options { per_process_gpu_memory_fraction: 0.5 }",
        "gpu_options { allow_growth: true"
        " experimental { virtual_devices { memory_limit_mb: 1024 } } }",
        [
            "per_process_gpu_memory_fraction=0.5 is 4096 MiB and becomes 1024 MiB:"
            " the ceiling of this lease"
        ],
    ),
    (
        "gpu_options { experimental { num_virtual_devices_per_gpu: 4 } }",
        "gpu_options { allow_growth: true experimental { virtual_devices {"
        " memory_limit_mb: 256 memory_limit_mb: 256 memory_limit_mb: 256 memory_limit_mb: 256"
        " } } }",
        [],
    ),
    (
        "gpu_options { visible_device_list: '2' }",
        "gpu_options { allow_growth: true visible_device_list: '0'"
        " experimental { virtual_devices { memory_limit_mb: 1024 } } }",
        ["visible_device_list=2 becomes 0: a lease is on one GPU, here gpu0"],
    ),
    (
        "gpu_options { visible_device_list: '0,1' experimental {"
        " virtual_devices { memory_limit_mb: 512 } virtual_devices { memory_limit_mb: 512 } } }",
        "gpu_options { allow_growth: true visible_device_list: '0'"
        " experimental { virtual_devices { memory_limit_mb: 512 } } }",
        [
            "visible_device_list=0,1 becomes 0: a lease is on one GPU, here gpu0",
            "logical devices of other GPUs are dropped: the lease is on gpu0",
        ],
    ),
    (
        "gpu_options { allocator_type: 'cuda_malloc'"
        " experimental { use_cuda_malloc_async: true } }",
        "gpu_options { allow_growth: true"
        " experimental { virtual_devices { memory_limit_mb: 1024 } } }",
        [
            "allocator_type=cuda_malloc is dropped: no lease holds under it",
            "use_cuda_malloc_async is dropped: no lease holds under it",
        ],
    ),
]


def parsed(text: str) -> Any:
    return text_format.Parse(text, config_pb2.ConfigProto())


@pytest.mark.parametrize(("asked", "given", "notes"), CASES)
def test_gpu_lease_makes_of_this_proto_that_one(
    asked: str, given: str, notes: list[str], on_gpu: Callable[..., LeaseTerms]
) -> None:
    config = parsed(asked)
    assert bound(config, on_gpu()) == notes
    assert config == parsed(given)


@pytest.mark.parametrize("asked", [case[0] for case in CASES])
def test_a_proto_within_its_lease_stays_as_it_is(
    asked: str, on_gpu: Callable[..., LeaseTerms]
) -> None:
    config = parsed(asked)
    bound(config, on_gpu())
    again = parsed("")
    again.CopyFrom(config)
    assert bound(again, on_gpu()) == []
    assert again == config


@pytest.mark.parametrize(
    ("asked", "limits", "notes"),
    [
        ("", [[1024], [512]], []),
        ("gpu_options { visible_device_list: '1,0' }", [[512], [1024]], []),
        ("gpu_options { visible_device_list: '1' }", [[512]], []),
        (
            "gpu_options { visible_device_list: '3' }",
            [[1024], [512]],
            ["visible_device_list=3 becomes 0,1: a lease is on gpu0, gpu1"],
        ),
        (
            "gpu_options { experimental { virtual_devices { memory_limit_mb: 300"
            " memory_limit_mb: 300 } virtual_devices { memory_limit_mb: 600 } } }",
            [[300, 300], [512]],
            ["logical GPUs of 600 MiB become 512 MiB: together they fit the ceiling of this lease"],
        ),
        ("gpu_options { per_process_gpu_memory_fraction: 0.25 }", [[1024], [512]], None),
    ],
)
def test_each_card_of_a_lease_has_its_own_limit(
    asked: str,
    limits: list[list[int]],
    notes: list[str] | None,
    on_gpu: Callable[..., LeaseTerms],
) -> None:
    """In the order in which the program has put them."""
    second = Card("gpu1", "GPU-bb", 512 * MIB, 4096 * MIB)
    lease = dataclasses.replace(on_gpu(), more=(second,))
    config = parsed(asked)
    said = bound(config, lease, 2)
    if notes is not None:
        assert said == notes
    devices = config.gpu_options.experimental.virtual_devices
    assert [list(one.memory_limit_mb) for one in devices] == limits
    assert bound(config, lease, 2) == []
    assert LeaseTerms.from_json(lease.to_json()) == lease


@pytest.mark.parametrize("asked", [case[0] for case in CASES])
def test_a_proto_is_left_alone_where_no_gpu_is_seen(
    asked: str, on_gpu: Callable[..., LeaseTerms], on_cpu: Callable[..., LeaseTerms]
) -> None:
    config = parsed(asked)
    assert bound(config, on_gpu(), gpus=0) == []
    assert bound(config, on_cpu("/run/a1")) == []
    assert config == parsed(asked)


def test_a_card_is_divided_into_logical_devices_with_a_part_of_the_lease_each(
    on_gpu: Callable[..., LeaseTerms],
) -> None:
    """And a CPU into several without one; what a program has divided itself stays."""
    config = config_pb2.ConfigProto()
    divide(config, 2, on_gpu=True)
    bound(config, on_gpu())
    divide(config, 2, on_gpu=True)
    bound(config, on_gpu())
    (card,) = config.gpu_options.experimental.virtual_devices
    assert list(card.memory_limit_mb) == [512, 512]
    cpus = config_pb2.ConfigProto()
    divide(cpus, 3, on_gpu=False)
    assert cpus.device_count["CPU"] == 3
    divide(cpus, 2, on_gpu=False)
    assert cpus.device_count["CPU"] == 3
