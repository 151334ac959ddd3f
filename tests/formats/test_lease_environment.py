"""Golden environments: what the user set, and what the program gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from sublet.formats.lease import MIB, LeaseTerms
from sublet.formats.lease_environment import SITE, leased_environment, too_late, without_fence

CHOOSE = "`--device` or `gpu=` chooses another"
CPU = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_BFC_MEMORY_DUMP": "/run/a1/dump-0",
    "PYTHONPATH": SITE,
}
GPU = {
    "CUDA_VISIBLE_DEVICES": "GPU-aa",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_BFC_MEMORY_DUMP": "/run/a1/dump-0",
    "PYTHONPATH": SITE,
}

CPU_CASES: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
    ({}, {}, []),
    ({"HOME": "/home/ada"}, {"HOME": "/home/ada"}, []),
    ({"PYTHONPATH": "/lib/a:/lib/b"}, {"PYTHONPATH": f"{SITE}:/lib/a:/lib/b"}, []),
    ({"PYTHONPATH": f"/lib/a:{SITE}"}, {"PYTHONPATH": f"{SITE}:/lib/a"}, []),
    ({"PYTHONPATH": ""}, {"PYTHONPATH": SITE}, []),
    ({"TF_BFC_MEMORY_DUMP": "/tmp/mine"}, {"TF_BFC_MEMORY_DUMP": "/tmp/mine"}, []),
    ({"CUDA_VISIBLE_DEVICES": ""}, {}, []),
    (
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {},
        [f"CUDA_VISIBLE_DEVICES=0,1 becomes -1: this lease is on the CPU; {CHOOSE}"],
    ),
    (
        {"TF_CPU_ALLOCATOR_USE_BFC": "false"},
        {},
        ["TF_CPU_ALLOCATOR_USE_BFC=false becomes 1: the lease is enforced by that allocator"],
    ),
    ({"TF_CPU_BFC_MEM_LIMIT_IN_MB": "32"}, {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "32"}, []),
    (
        {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "65"},
        {},
        ["TF_CPU_BFC_MEM_LIMIT_IN_MB=65 becomes 64: the ceiling of this lease"],
    ),
    (
        {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "-1"},
        {},
        ["TF_CPU_BFC_MEM_LIMIT_IN_MB=-1 becomes 64: the ceiling of this lease"],
    ),
]
GPU_CASES: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
    ({}, {}, []),
    ({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, {}, []),
    (
        {"CUDA_VISIBLE_DEVICES": "3"},
        {},
        [f"CUDA_VISIBLE_DEVICES=3 becomes GPU-aa: the device of this lease; {CHOOSE}"],
    ),
    (
        {"CUDA_VISIBLE_DEVICES": "-1"},
        {"CUDA_VISIBLE_DEVICES": "-1"},
        ["CUDA_VISIBLE_DEVICES=-1 is kept: the lease on gpu0 stays unused"],
    ),
    (
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": ""},
        ["CUDA_VISIBLE_DEVICES= is kept: the lease on gpu0 stays unused"],
    ),
    ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, {}, []),
    (
        {"TF_FORCE_GPU_ALLOW_GROWTH": "false"},
        {},
        ["TF_FORCE_GPU_ALLOW_GROWTH=false becomes true: memory is taken as it is needed"],
    ),
    (
        {"TF_GPU_ALLOCATOR": "cuda_malloc_async"},
        {},
        ["TF_GPU_ALLOCATOR=cuda_malloc_async is dropped: no lease can be enforced under it"],
    ),
    ({"TF_GPU_ALLOCATOR": "BFC"}, {}, []),
]


@pytest.mark.parametrize(("environ", "changed", "notes"), CPU_CASES)
def test_cpu_lease_gives_this_environment(
    environ: dict[str, str],
    changed: dict[str, str],
    notes: list[str],
    on_cpu: Callable[..., LeaseTerms],
) -> None:
    lease = on_cpu("/run/a1")
    golden = {**CPU, **changed, "SUBLET_LEASE": lease.to_json()}
    assert leased_environment(lease, environ) == (golden, notes)


@pytest.mark.parametrize(("environ", "changed", "notes"), GPU_CASES)
def test_gpu_lease_gives_this_environment(
    environ: dict[str, str],
    changed: dict[str, str],
    notes: list[str],
    on_gpu: Callable[..., LeaseTerms],
) -> None:
    lease = on_gpu("/run/a1")
    golden = {**GPU, **changed, "SUBLET_LEASE": lease.to_json()}
    assert leased_environment(lease, environ) == (golden, notes)


@pytest.mark.parametrize("own", ["", "/opt/lib:/usr/lib"])
def test_a_fence_comes_first_on_the_library_path_and_goes_with_its_lease(
    own: str, on_gpu: Callable[..., LeaseTerms]
) -> None:
    """Also before a lease within that one has a fence or none; the path alone is the user's."""
    lease = dataclasses.replace(on_gpu("/run/a1"), fence="/home/fence/1")
    environ = {"LD_LIBRARY_PATH": own} if own else {}
    fenced, _ = leased_environment(lease, environ)
    assert fenced["LD_LIBRARY_PATH"] == ":".join(filter(None, ["/home/fence/1", own]))
    assert fenced["SUBLET_FENCE_FILE"] == "/run/a1/fence"
    assert leased_environment(lease, fenced) == (fenced, [])
    assert without_fence(fenced).get("LD_LIBRARY_PATH", "") == own
    inner = dataclasses.replace(on_gpu("/run/b1"), fence="/home/fence/1")
    assert leased_environment(inner, fenced)[0] == leased_environment(inner, environ)[0]
    bare = on_gpu("/run/b1")
    assert leased_environment(bare, fenced)[0] == leased_environment(bare, environ)[0]


@pytest.mark.parametrize("environ", [case[0] for case in CPU_CASES])
def test_an_environment_that_is_leased_already_stays_as_it_is(
    environ: dict[str, str], on_cpu: Callable[..., LeaseTerms]
) -> None:
    lease = on_cpu("/run/a1")
    once, _ = leased_environment(lease, environ)
    assert leased_environment(lease, once) == (once, [])


def test_a_lease_asked_for_inside_a_lease_is_not_narrowed_by_the_outer_one(
    on_cpu: Callable[..., LeaseTerms], on_gpu: Callable[..., LeaseTerms]
) -> None:
    outer, _ = leased_environment(on_cpu("/run/a1", mib=64), {"HOME": "/home/ada"})
    lease = on_gpu("/run/a2")
    inner, notes = leased_environment(lease, outer)
    assert (inner, notes) == leased_environment(lease, {"HOME": "/home/ada"})


def test_what_is_left_of_an_outer_lease_for_the_moment_is_nobodys_wish(
    on_cpu: Callable[..., LeaseTerms], on_gpu: Callable[..., LeaseTerms]
) -> None:
    """Neither for a lease within it nor for a child that starts when it is whole again."""
    whole, _ = leased_environment(on_cpu("/run/a1"), {})
    lent = whole | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "40", "SUBLET_LEFT": "40"}
    for lease in (on_cpu("/run/a1"), on_cpu("/run/a2", mib=50), on_gpu("/run/a2")):
        assert leased_environment(lease, lent) == leased_environment(lease, {})
    users = leased_environment(on_cpu("/run/a1"), lent | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": "30"})[0]
    assert users["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "30"


@pytest.mark.parametrize(
    ("named", "cpu", "gpu"),
    [
        (None, False, False),
        ("-1", False, True),
        ("", False, True),
        ("GPU-aa", True, False),
        ("0", True, True),
    ],
)
def test_naming_other_devices_after_the_start_is_noticed(
    named: str | None,
    cpu: bool,
    gpu: bool,
    on_cpu: Callable[..., LeaseTerms],
    on_gpu: Callable[..., LeaseTerms],
) -> None:
    environ = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    assert (too_late(on_cpu("/run/a1"), environ) is not None) == cpu
    assert (too_late(on_gpu("/run/a1"), environ) is not None) == gpu


def test_ceiling_is_rounded_down_to_whole_mebibytes_but_never_to_none(
    on_cpu: Callable[..., LeaseTerms],
) -> None:
    half = LeaseTerms(1, 1, "t", "cpu", "cpu", None, MIB // 2, 9 * MIB, "/run/a1")
    more = LeaseTerms(1, 1, "t", "cpu", "cpu", None, 3 * MIB - 1, 9 * MIB, "/run/a1")
    assert leased_environment(half, {})[0]["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "1"
    assert leased_environment(more, {})[0]["TF_CPU_BFC_MEM_LIMIT_IN_MB"] == "2"
