"""Leases for those who write Ray tasks, actors and Tune trials: a fraction that is enforced.

    @sublet.ray.remote(num_gpus=0.25)        @ray.remote(num_gpus=0.25)
    def train(rate): ...                     class Trainer:
                                                 def __init__(self):
                                                     sublet.ray.lease()

Ray counts what its tasks say that they need, and chooses the machine. The broker there, which the
first call starts, holds each to it: `num_gpus` is that share of the GPU's memory, `memory` is so
many bytes of main memory where there is no GPU, and what the process itself costs is included. So
as many leases fit as Ray lets tasks run.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from sublet.client.lease import Lease
from sublet.client.lease import lease as hold
from sublet.errors import BadRequest
from sublet.pool.cluster import imported
from sublet.pool.pool import Pool

_OWN = "num_gpus=0.25, or memory=2 * 2**30 for a task without a GPU"


class _Assigned(NamedTuple):
    """What Ray has set aside for the task or actor that runs in this process."""

    memory: str
    """As `sublet.lease` takes it."""
    device: str | None
    """None for the GPU that Ray has named in CUDA_VISIBLE_DEVICES."""
    name: str


def lease(memory: str | None = None, *, timeout: float | None = None) -> Lease:
    """Hold a lease in the process of this task, actor or trial, before TensorFlow starts in it.

    The lease is what Ray has set aside: the share of a GPU (`num_gpus`), or the main memory
    (`memory`). It ends with the process. Ray ends the processes of tasks with a GPU after each
    call; for others write `max_calls=1`, or use `sublet.ray.remote`, which starts warm.

    :param memory: another size, as `sublet.lease` takes it.
    :param timeout: seconds to wait for room, which is there unless others than Ray use the device.
    """
    ray = _ray()
    resources = _resources(ray, "lease")
    if memory is not None:
        device = None if resources.get("GPU") else "cpu"
        return hold(memory, device=device, name=_name(ray), timeout=timeout)
    assigned = _assigned(ray, resources)
    return hold(assigned.memory, device=assigned.device, name=assigned.name, timeout=timeout)


def remote(*function: Any, **options: Any) -> Any:
    """`ray.remote` for functions that use TensorFlow: each call has a warm process of its own,
    under a lease of what Ray has set aside for it.

    Takes the options of `ray.remote`, among them `num_gpus` or `memory`, and returns what that
    does: call `.remote(...)` and `.options(...)` on it.
    """
    ray = _ray()
    if not function:
        return functools.partial(remote, **options)
    (called,) = function
    if isinstance(called, type) or not callable(called):
        raise BadRequest(
            f"sublet.ray.remote takes a function, not {called!r}.",
            "Decorate a class with ray.remote, and call sublet.ray.lease() in its __init__.",
        )
    # Ray's own process never holds the device, so it can be kept.
    return ray.remote(**{"max_calls": 0, **options})(_in_worker(called))


def _in_worker(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function in a leased worker of the machine on which Ray runs this."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        from sublet import ray as here  # Ray sends this function by value; the module stays.

        return here._call(function, args, kwargs)

    return call


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    ray = _ray()
    assigned = _assigned(ray, _resources(ray, "remote"))
    # Left by an exception, as when the task is cancelled, the pool ends the worker.
    with Pool(1, assigned.memory, device=assigned.device, name=assigned.name) as pool:
        return pool.submit(functools.partial(function, *args, **kwargs)).result()


def _assigned(ray: Any, resources: dict[str, float]) -> _Assigned:
    gpus, memory = resources.get("GPU", 0), resources.get("memory", 0)
    if gpus > 1:
        raise BadRequest(
            f"Ray has set aside {gpus:g} GPUs, and a process can hold a lease on one.",
            "Ask Ray for one GPU or a part of it, or start the program with `sublet run --gpus`.",
        )
    if gpus:
        return _Assigned(f"{gpus * 100:g}% total", None, _name(ray))
    if memory:
        return _Assigned(f"{int(memory)}B total", "cpu", _name(ray))
    raise BadRequest(
        "Ray has set aside no share of a GPU and no memory for this task or actor.",
        f"Say how much it may use: {_OWN}.",
    )


def _resources(ray: Any, caller: str) -> dict[str, float]:
    """What Ray has set aside for the task or actor in this process."""
    if not ray.is_initialized():
        inside = False
    else:
        context = ray.get_runtime_context()
        inside = bool(context.get_task_id() or context.get_actor_id())
    if not inside:
        raise BadRequest(
            f"sublet.ray.{caller} was called outside of a Ray task or actor.",
            "Call it in one; elsewhere there is sublet.lease.",
        )
    resources: dict[str, float] = context.get_assigned_resources()
    return resources


def _name(ray: Any) -> str:
    """What people see in `sublet status`."""
    context = ray.get_runtime_context()
    name = context.get_actor_name() or context.get_task_name() or context.get_task_function_name()
    return f"ray:{name}" if name else "ray"


def _ray() -> Any:
    return imported("sublet.ray")
