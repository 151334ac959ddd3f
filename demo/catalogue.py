"""The twenty programs, and what their users would ask for.

Owns the list and its order. The programs themselves know nothing of Sublet.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "programs"


@dataclass(frozen=True)
class Program:
    """A script, and the words its user puts before it."""

    name: str
    memory: str
    on_oom: str = "fail"
    on_card: str = ""
    """What they say for a GPU, if that differs: kernels there take workspaces of their own."""
    needs_numbers: bool = False
    """Whether it fails where kernels compute nothing: a shape depends on a number there."""

    def asked(self, device: str) -> str:
        """The memory that is asked for on this device."""
        return self.memory if device == "cpu" else self.on_card or self.memory

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"


PROGRAMS = (
    # Too little, as people guess: it is started again with more, and nobody has to look.
    Program("embedding", "192MiB", on_oom="grow", on_card="128MiB"),
    Program("spawned_child", "64MiB"),
    Program("attention", "320MiB"),
    Program("tf1_session", "32MiB"),
    Program("lstm", "32MiB", needs_numbers=True),
    Program("cnn", "256MiB", on_card="400MiB"),
    Program("vae", "32MiB"),
    Program("tf1_fraction", "64MiB"),
    Program("resnet", "10%"),
    Program("accumulation", "64MiB"),
    Program("custom_loop", "400MiB"),
    Program("saved_model", "32MiB"),
    Program("xla", "96MiB", on_card="192MiB"),
    Program("tf1_two_sessions", "64MiB"),
    Program("gru", "128MiB"),
    Program("data_pipeline", "auto"),
    Program("logical_devices", "32MiB"),
    Program("autoencoder", "128MiB"),
    Program("mixed_precision", "32MiB"),
    Program("mlp_growth", "auto"),
)
