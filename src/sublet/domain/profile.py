"""What is left of a profile: where its files are, and what is in them."""

from msgspec import Struct


class Profile(Struct, frozen=True):
    """What a profile has brought."""

    job: int
    name: str
    device: str
    steps: int
    """So many are in TensorFlow's profile; 0 if none were seen."""
    seconds: float
    """So long it is."""
    logdir: str
    """For `tensorboard --logdir`."""
    trace: str
    """The time line of all programs on the device, for ui.perfetto.dev."""
    profiles: tuple[str, ...] = ()
    """TensorFlow's profile of each process."""
    programs: int = 0
    """Of so many programs there are steps in the time line."""
    notes: tuple[str, ...] = ()
    """What is missing, and why."""
