"""Many TensorFlow programs on one device, each under a lease that TensorFlow enforces.

The names in `__all__`, and the modules `sublet.joblib`, `sublet.multiprocessing`, `sublet.ray`
and `sublet.sweeps`, are the public API; every other module is private. Importing this is quick: no
TensorFlow, no GPU, and each name is loaded when it is first used.
"""

TYPE_CHECKING = False  # Known to type checkers by its name; typing itself is not free.
if TYPE_CHECKING:
    from typing import Any

    from sublet.channel.codes import Code
    from sublet.client.api import Report, run, status
    from sublet.client.jobs import Job, submit, submit_array
    from sublet.client.lease import Lease, lease
    from sublet.client.training import fit, split
    from sublet.errors import (
        BadRequest,
        BrokerGone,
        BrokerRuns,
        CallFailed,
        InternalError,
        LeaseExceeded,
        LedgerDamaged,
        NodeLost,
        RemoteError,
        ServingError,
        SubletError,
        Superseded,
        TimedOut,
        TooLarge,
        WorkerDied,
        WorldError,
    )
    from sublet.pool.pool import Pool
    from sublet.pool.task import task
    from sublet.serving.client.connect import Model, connect
    from sublet.serving.client.engine import Engine
    from sublet.sweeps.sweep import sweep
    from sublet.wire.messages import Snapshot
    from sublet.wire.rows import JobRow

__version__ = "0.1.0"
__all__ = [
    "BadRequest",
    "BrokerGone",
    "BrokerRuns",
    "CallFailed",
    "Code",
    "Engine",
    "InternalError",
    "Job",
    "JobRow",
    "Lease",
    "LeaseExceeded",
    "LedgerDamaged",
    "Model",
    "NodeLost",
    "Pool",
    "RemoteError",
    "Report",
    "ServingError",
    "Snapshot",
    "SubletError",
    "Superseded",
    "TimedOut",
    "TooLarge",
    "WorkerDied",
    "WorldError",
    "__version__",
    "connect",
    "fit",
    "lease",
    "run",
    "split",
    "status",
    "submit",
    "submit_array",
    "sweep",
    "task",
]

_ELSEWHERE = {
    "sublet.channel.codes": ("Code",),
    "sublet.client.api": ("Report", "run", "status"),
    "sublet.client.jobs": ("Job", "submit", "submit_array"),
    "sublet.client.lease": ("Lease", "lease"),
    "sublet.client.training": ("fit", "split"),
    "sublet.pool.pool": ("Pool",),
    "sublet.pool.task": ("task",),
    "sublet.serving.client.connect": ("Model", "connect"),
    "sublet.serving.client.engine": ("Engine",),
    "sublet.sweeps.sweep": ("sweep",),
    "sublet.wire.messages": ("Snapshot",),
    "sublet.wire.rows": ("JobRow",),
}
"""Where each name is defined; the others are errors."""


if not TYPE_CHECKING:  # So that a checker finds names that are not there.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'sublet' has no attribute {name!r}")
        import importlib

        home = next(
            (module for module, names in _ELSEWHERE.items() if name in names), "sublet.errors"
        )
        try:
            return getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as error:
            if not home.startswith("sublet.serving."):
                raise
            from sublet.errors import BadRequest

            message = f"sublet.{name} needs the package {error.name}, which is not installed."
            raise BadRequest(message, "Install it: pip install 'sublet[serve]'.") from error


def load_ipython_extension(shell: "Any") -> None:
    """Called by `%load_ext sublet`: `%sublet` is known from then on."""
    import importlib  # As above: the layers below may import this package for its version.

    magics = importlib.import_module("sublet.client.magics")
    shell.register_magic_function(magics.magic, "line", "sublet")


def __dir__() -> list[str]:
    return __all__
