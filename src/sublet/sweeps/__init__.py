"""Sweeps: many trainings that differ in a few parameters.

    space ─▶ search ─▶ rung: which trials train how far ─▶ models or jobs ─▶ journal ─▶ records
                 ▲                                                              │
                 └──────────────────────────────────────────────────────────────┘

Public are the names below, for the space of `sublet.sweep`; each is loaded when it is first used.
"""

TYPE_CHECKING = False  # Known to type checkers by its name; typing itself is not free.
if TYPE_CHECKING:
    from sublet.sweeps.result import SweepResult, TrialResult
    from sublet.sweeps.search.choose import halving, pbt
    from sublet.sweeps.space import choice, loguniform, randint, uniform

__all__ = [
    "SweepResult",
    "TrialResult",
    "choice",
    "halving",
    "loguniform",
    "pbt",
    "randint",
    "uniform",
]
_ELSEWHERE = {"SweepResult": "result", "TrialResult": "result"}
_ELSEWHERE |= {"halving": "search.choose", "pbt": "search.choose"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'sublet.sweeps' has no attribute {name!r}")
        import importlib

        home = _ELSEWHERE.get(name, "space")
        return getattr(importlib.import_module(f"sublet.sweeps.{home}"), name)
