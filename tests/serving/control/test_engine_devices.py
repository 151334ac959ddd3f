"""What `--device` means, on machines with and without GPUs."""

import pytest

from sublet.domain.device import Device
from sublet.errors import BadRequest
from sublet.serving.control.placement import EngineDevice, find
from sublet.wire.rows import DeviceRow


def row(name: str, uuid: str | None = None, index: int | None = None) -> DeviceRow:
    kind = "cpu" if index is None else "gpu"
    device = Device(name, kind, "Card", 1 << 34, index, uuid, "NVML")  # type: ignore[arg-type]
    return DeviceRow(device, leased=0, strangers=0, standing=0, free=1 << 34)


CPU = row("cpu")
GPUS = [row("gpu0", "GPU-a", 0), row("gpu1", "GPU-b", 1), CPU]
MIG = [row("gpu0.0", "MIG-a", 0), row("gpu0.1", "MIG-b", 0), row("gpu1", "GPU-b", 1), CPU]


def sites(asked: str | None, rows: list[DeviceRow]) -> list[tuple[str, str | None]]:
    return [(site.name, site.asked) for site in find(asked, rows, nested=False)]


def test_without_a_word_there_is_a_site_on_each_gpu_or_else_on_the_cpu() -> None:
    assert sites(None, GPUS) == [("gpu0", "GPU-a"), ("gpu1", "GPU-b")]
    assert sites(None, [CPU]) == [("cpu", None)]


def test_each_word_is_a_site_and_one_for_several_devices_is_one_on_each() -> None:
    assert sites("gpu1", GPUS) == [("gpu1", "gpu1")]
    assert sites("gpu, cpu", GPUS) == [("gpu0", "GPU-a"), ("gpu1", "GPU-b"), ("cpu", "cpu")]
    assert sites("GPU-b,gpu0", GPUS) == [("gpu1", "GPU-b"), ("gpu0", "GPU-a")]
    assert sites("gpu0", MIG) == [("gpu0.0", "MIG-a"), ("gpu0.1", "MIG-b")]


def test_a_device_that_is_named_twice_has_two_sites() -> None:
    assert sites("cpu,cpu", [CPU]) == [("cpu#1", "cpu"), ("cpu#2", "cpu")]


def test_what_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(BadRequest, match=r"no device 'gpu7'\. Available: gpu0 \(Card, GPU-a\)"):
        sites("gpu0,gpu7", GPUS)
    with pytest.raises(BadRequest, match=r"There is no GPU here\. Available: cpu\."):
        sites("gpu", [CPU])


def test_within_a_lease_there_is_that_lease() -> None:
    assert find(None, GPUS, nested=True) == (EngineDevice("lease#1", None),)
    assert [site.asked for site in find("cpu,cpu", GPUS, nested=True)] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("1", ["gpu1"]),
        ("gpu1", ["gpu1"]),
        ("GPU-b", ["gpu1"]),
        ("gpu", ["gpu0.0", "gpu0.1", "gpu1"]),
        ("0", ["gpu0.0", "gpu0.1"]),
        ("0.1", ["gpu0.1"]),
        ("cpu", ["cpu#1", "cpu#2"]),
        ("cpu#2", ["cpu#2"]),
        ("gpu2", []),
    ],
)
def test_a_model_names_a_site_as_people_name_devices(name: str, meant: list[str]) -> None:
    found = find("gpu,cpu,cpu", MIG, nested=False)
    assert [site.name for site in found if site.goes_by(name)] == meant
