"""The models that engines of this user serve, as the page shows them."""

from msgspec import Struct

from sublet.page.job_rows import shown_name, shown_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sublet.serving.metrics import Sample


class ModelRow(Struct, frozen=True):
    """One version of a model on one device."""

    model: str
    version: int
    state: str
    device: str
    bytes: int
    load_seconds: float
    requests: int
    waiting: int
    """Rows in its queue."""
    idle: float | None
    error: str
    engine: str = ""
    per_second: float | None = None
    """Requests; of the last seconds with any, as all that follows."""
    batch: float | None = None
    """Rows of a batch, on average."""
    median: float | None = None
    """Seconds from arrival to answer."""
    p99: float | None = None


class Models(Struct, frozen=True):
    """All of them, or why they are not known."""

    rows: tuple[ModelRow, ...] = ()
    fault: str = ""


def read_models() -> Models:
    """What is served now. Engines that do not answer are left out."""
    try:
        from sublet.serving.client.engine_directory import list_models
    except ImportError:
        return Models(fault="Install what serving needs to see models: pip install 'sublet[serve]'")
    return Models(
        tuple(
            ModelRow(
                shown_name(row.model),
                row.version,
                shown_name(row.state),
                shown_name(row.device),
                row.bytes,
                row.load_seconds,
                row.requests,
                row.waiting,
                row.idle,
                shown_text(row.error),
                row.engine,
                *_latest(row.latest),
            )
            for row in list_models()
        )
    )


def read_model_history(engine: str, model: str, version: int) -> "list[Sample]":
    """What a version did in the last day: empty if its engine is gone."""
    from sublet.serving.client.engine_directory import model_history

    return model_history(engine, model, version)


def _latest(one: "Sample | None") -> tuple[float, ...]:
    if one is None:
        return ()
    return one.requests / one.seconds, one.rows / one.batches, one.median, one.p99
