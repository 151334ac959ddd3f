"""Many TensorFlow programs on one device, each under a lease that TensorFlow enforces.

Importing this is quick: no TensorFlow, no GPU, and each name is loaded when it is first used.
"""

TYPE_CHECKING = False  # Known to type checkers by its name; typing itself is not free.
if TYPE_CHECKING:
    from sublet.client.api import Report, run, status
    from sublet.client.jobs import Job, submit, submit_array
    from sublet.client.lease import Lease, lease
    from sublet.errors import (
        CallFailed,
        LeaseExceeded,
        RemoteError,
        ServingError,
        SubletError,
        WorkerDied,
    )
    from sublet.pool.pool import Pool
    from sublet.pool.task import task
    from sublet.serving.client.connect import Model, connect
    from sublet.serving.client.engine import Engine

__version__ = "0.1.0"
__all__ = [
    "CallFailed",
    "Engine",
    "Job",
    "Lease",
    "LeaseExceeded",
    "Model",
    "Pool",
    "RemoteError",
    "Report",
    "ServingError",
    "SubletError",
    "WorkerDied",
    "__version__",
    "connect",
    "lease",
    "run",
    "status",
    "submit",
    "submit_array",
    "task",
]

_HOMES = {
    "CallFailed": "sublet.errors",
    "Engine": "sublet.serving.client.engine",
    "Model": "sublet.serving.client.connect",
    "ServingError": "sublet.errors",
    "connect": "sublet.serving.client.connect",
    "LeaseExceeded": "sublet.errors",
    "Pool": "sublet.pool.pool",
    "RemoteError": "sublet.errors",
    "WorkerDied": "sublet.errors",
    "Job": "sublet.client.jobs",
    "Lease": "sublet.client.lease",
    "Report": "sublet.client.api",
    "SubletError": "sublet.errors",
    "lease": "sublet.client.lease",
    "run": "sublet.client.api",
    "status": "sublet.client.api",
    "submit": "sublet.client.jobs",
    "submit_array": "sublet.client.jobs",
    "task": "sublet.pool.task",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sublet' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
