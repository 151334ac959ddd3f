"""`sublet.sweep`: train a Keras model with many parameters, and find the best."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sublet.errors import BadRequest, SubletError
from sublet.sweeps import driver
from sublet.sweeps.models import WAYS, Inside, Models, Way
from sublet.sweeps.opening import forget_if_nothing_ended, opened
from sublet.sweeps.progress import Progress
from sublet.sweeps.records import Mode, Settings
from sublet.sweeps.result import SweepResult, TrialResult
from sublet.sweeps.saved import Saved
from sublet.sweeps.search import choose, optuna
from sublet.sweeps.space import Space

if TYPE_CHECKING:
    from sublet.sweeps.search.choose import HalvingOptions, PopulationOptions

SearchName = Literal["grid", "random", "halving", "pbt"]


def sweep(
    build_model: Callable[..., Any] | Any,
    space: Mapping[str, Any],
    data: Any,
    *,
    validation_data: Any = None,
    epochs: int = 10,
    metric: str | None = None,
    mode: Mode | None = None,
    trials: int | None = None,
    search: "SearchName | HalvingOptions | PopulationOptions | Any" = "grid",
    batch_size: int = 32,
    shuffle: bool | Literal["each"] = True,
    seed: int = 0,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[Any] | Callable[[TrialResult], Sequence[Any]] | None = None,
    way: Way = "auto",
    memory: str | None = None,
    on: str = "local",
    directory: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    verify: bool = False,
    progress: bool = True,
    name: str | None = None,
) -> SweepResult:
    """Train `build_model(**params)` for many parameters, and return all trials and the best.

    Models of the same architecture are trained as one where that is faster, in several leased
    workers where it is not, or one after the other; a short measurement decides, and is shown.

    :param build_model: returns a compiled Keras 3 model; or a Keras Tuner `HyperModel`.
    :param space: each parameter and what it may be: a list, a range, or `loguniform`, `uniform`,
        `randint` of `sublet.sweeps`. `seed` seeds Keras before the model is built, and is passed on
        only if the builder has such a parameter.
    :param data: (x, y) or (x, y, sample weights) as arrays, or a `tf.data.Dataset` of batches.
    :param metric: a name in Keras' logs; without it val_loss, or loss without validation data.
    :param mode: "min" or "max"; without it, by the name of the metric.
    :param trials: how many; needed where the space has no end.
    :param search: "grid" (all), "random", "halving" (losers end early), "pbt" (losers take over the
        weights of winners), `sublet.sweeps.halving(...)` or `pbt(...)` with options, or an Optuna
        study or sampler.
    :param shuffle: whether the rows of arrays come in another order in each epoch: the same for all
        trials, or with "each" one for each trial, by its `seed` or its number.
    :param callbacks: Keras callbacks, copied for each trial, or a function of a trial (`number`,
        `params`) that returns some. They are called for epochs, not for batches.
    :param way: "auto", or "fused", "packed" or "serial" to decide yourself.
    :param memory: a lease for this process, as `sublet.lease` takes it; of workers, the size of
        each. Without it this process goes on with the lease that it has, or none.
    :param on: "ray" trains on the nodes of a Ray cluster, as `sublet.Pool(on=...)` calls there;
        what is trained as one becomes a stack on each node.
    :param directory: a sweep that was killed goes on there when it is called again.
    :param tensorboard: a directory for the scalars of each trial.
    :param verify: train some of the fused trials alone as well, and report the largest difference.
    """
    settings, chosen = _settings(
        build_model, space, metric, mode, epochs, trials, search, seed, validation_data is not None
    )
    if way not in WAYS:
        raise BadRequest(f"way={way!r} is unknown.", f"Write {', '.join(WAYS)}.")
    if shuffle not in (True, False, "each"):
        raise BadRequest(f"shuffle={shuffle!r} is unknown.", 'Write True, False or "each".')
    if batch_size < 1:
        raise BadRequest(f"batch_size={batch_size}: at least one row.", "Such as 32.")
    if memory is not None and way != "packed" and on == "local":
        from sublet.client.lease import lease

        lease(memory, name=name or "sweep")
    inside = Inside()
    builder = inside.call(inside.building.Builder, build_model, seed)
    inside.call(builder.check, list(space))
    source = inside.call(
        inside.data.Data, data, validation_data, batch_size, shuffle, seed, class_weight
    )
    settings = _with_options(settings, source, batch_size, shuffle, class_weight)
    summaries = None
    if tensorboard is not None:
        summaries = inside.summaries.Summaries(os.fspath(tensorboard))
    place = None if directory is None else Path(directory).absolute()
    with opened(place, name or settings.subject, settings) as journal:
        models = Models(
            inside,
            builder,
            source,
            metric=settings.metric,
            epochs=epochs,
            callbacks=callbacks,
            way=way,
            memory=memory,
            on=on,
            saved=None if place is None else Saved(place),
            summaries=summaries,
        )
        watcher = Progress(chosen.work, progress)
        ended = None
        try:
            ended = driver.lead(journal, chosen, models, watcher)
        except SubletError:
            forget_if_nothing_ended(journal)
            raise
        finally:
            models.close()
            watcher.close(ended)
        differences = models.verify(ended) if verify else {}
        return SweepResult(ended, models.model, differences)


def _settings(
    build_model: Any,
    space: Mapping[str, Any],
    metric: str | None,
    mode: Mode | None,
    epochs: int,
    trials: int | None,
    search: Any,
    seed: int,
    validated: bool,
) -> tuple[Settings, Any]:
    """What the sweep is, and its search; raises BadRequest before anything is loaded."""
    if epochs < 1:
        raise BadRequest(f"epochs={epochs}: at least one.", "Such as epochs=10.")
    metric = metric or ("val_loss" if validated else "loss")
    if metric.startswith("val_") and not validated:
        raise BadRequest(
            f"{metric} is measured on validation data, and there is none.",
            f'Give validation_data=(x, y), or metric="{metric.removeprefix("val_")}".',
        )
    if mode not in (None, "min", "max"):
        raise BadRequest(f"mode={mode!r} is unknown.", "Write min or max.")
    mode = mode or optuna.mode_of(search) or choose.mode_of(metric)
    domains = Space.read(space)
    chosen = choose.choose(search, domains, epochs, mode, trials, seed)
    return (
        Settings(
            kind="models",
            subject=getattr(build_model, "__name__", type(build_model).__name__),
            space=domains.plain(),
            search=chosen.name,
            metric=metric,
            mode=mode,
            epochs=epochs,
            trials=trials or 0,
            seed=seed,
        ),
        chosen,
    )


def _with_options(
    settings: Settings,
    data: Any,
    batch_size: int,
    shuffle: bool | str,
    class_weight: Mapping[int, float] | None,
) -> Settings:
    from msgspec import structs

    options = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "data": data.shapes,
        "class_weight": None
        if class_weight is None
        else {str(label): float(weight) for label, weight in class_weight.items()},
    }
    return structs.replace(settings, options=options)
