"""What the rules may know of a machine: facts that somebody else has gathered."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Machine:
    """Where a program runs. None and empty mean "not known", and no rule minds that."""

    environ: Mapping[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 11)
    """The version of the interpreter that runs programs."""
    interpreter: str = ""
    tensorflow: str | None = None
    """The version that this interpreter would import; empty if there is none."""
    keras: str = ""
    tf_keras: bool | None = None
    """Whether the package of Keras 2 is there."""
    built: Mapping[str, object] = field(default_factory=dict)
    """What TensorFlow says of how it was built."""
    missing: tuple[str, ...] = ()
    """Libraries of CUDA that TensorFlow needs and that cannot be found."""
    card: bool = False
    """Whether the PCI bus has an NVIDIA card, driver or not."""
    driver: str | None = None
    """Why NVIDIA's driver cannot be used; empty if it can."""
    too_old: str = ""
    """Why the driver does not do for this TensorFlow."""
    gpus: tuple[str, ...] | None = None
    """The UUIDs of the cards, in the order of their numbers."""
    stubs: tuple[str, ...] = ()
    """Directories on LD_LIBRARY_PATH in which a libcuda.so.1 lies that is no driver."""

    @property
    def count(self) -> int | None:
        """How many GPUs programs see; None if that is not known."""
        if self.gpus is None:
            return None
        visible = self.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return len(self.gpus)
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])

    @property
    def keras_3(self) -> bool:
        """Whether `tf.keras` is Keras 3 there."""
        legacy = self.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
        return not legacy and not self.keras.startswith("2.")
