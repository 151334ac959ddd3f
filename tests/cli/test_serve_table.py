"""What `sublet serve` shows when it is ready."""

from typing import Any

from sublet.cli.serving import table


def facts(model: str, *devices: str, **more: Any) -> dict[str, Any]:
    known = {"version": 1, "state": "AVAILABLE", "error": "", "in_memory": True}
    sizes = {"bytes": 1023 << 20, "load_seconds": 59.9}
    return {"model": model, "devices": list(devices), **known, **sizes, **more}


def test_on_one_device_nothing_is_said_of_devices() -> None:
    lines = table([facts("half"), facts("m" * 50)]).splitlines()
    assert lines[0].split() == ["model", "version", "state", "memory", "load"]
    assert max(map(len, lines)) <= 80


def test_on_several_devices_each_line_says_where_a_model_is() -> None:
    many = [f"gpu{n}" for n in range(8)]
    failed = facts("bad", error="It is damaged.", state="END")
    models = [facts("half", "gpu1"), facts("m" * 50, *many, version=1763294400), failed]
    head, half, long, bad, why = table(models).splitlines()
    assert head.split()[-1] == "on"
    assert half.split()[-1] == "gpu1"
    assert len(long) <= 80
    assert bad.split()[:3] == ["bad", "1", "failed"]
    assert why.strip() == "It is damaged."
