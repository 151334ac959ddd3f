"""A user's own CUDA_VISIBLE_DEVICES, as the wish for devices that it is."""

import os
from collections.abc import Mapping

import msgspec

from sublet.domain.device import Device, no_such_device
from sublet.domain.job import JobSpec
from sublet.errors import BadRequest
from sublet.formats.lease_environment import VISIBLE, hides_gpus, of_outer_lease

_UNSET = f"Unset {VISIBLE}, or let `--device` say what you want."


def with_wish(spec: JobSpec, devices: Mapping[str, Device], left_out: Mapping[str, str]) -> JobSpec:
    """The spec with the devices that its environment names, if it names any and the user has said
    nothing else. Numbers are those of nvidia-smi. As CUDA does, it ends with the first word that
    names no GPU; but if that is the first of all, the job is refused, and not put on the CPU."""
    environ = {
        os.fsdecode(name): os.fsdecode(value) for name, value in spec.surroundings.environ.items()
    }
    asked = environ.get(VISIBLE)
    gpus = [one for one in devices.values() if one.kind == "gpu" and not one.on]
    if asked is None or spec.on or spec.device is not None or spec.within is not None or not gpus:
        return spec
    if of_outer_lease(VISIBLE, environ):
        return spec
    if hides_gpus(environ):
        if spec.gpus:
            raise BadRequest(f"{VISIBLE}={asked} hides all GPUs, and --gpus asks for some.", _UNSET)
        return msgspec.structs.replace(spec, device="cpu", wished=True)
    found: dict[str, None] = {}
    for word in asked.split(","):
        meant = [one.id for one in gpus if _means(word.strip(), one)]
        if not meant and not found:
            name = f"gpu{word.strip()}" if word.strip().isdecimal() else word.strip()
            refusal = no_such_device(name, gpus, left_out)
            raise BadRequest(f"{VISIBLE}={asked}: {refusal.message}", f"{refusal.hint} {_UNSET}")
        if not meant:
            break
        found |= dict.fromkeys(meant)
    return msgspec.structs.replace(spec, device=",".join(found), wished=True)


def _means(word: str, one: Device) -> bool:
    """CUDA also takes the beginning of a card's UUID."""
    if word.isdecimal():
        return one.index == int(word)
    return one.uuid == word or (
        one.card is None and word.startswith("GPU-") and (one.uuid or "").startswith(word)
    )
