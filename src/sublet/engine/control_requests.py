"""What an engine can be asked, beside running its models: JSON in, JSON out.

Everybody may ask `hello`, `model_store` and `describe`; only the owner may `add`, `load`, `unload`,
`retire`, `forget`, `interrupt`, and ask for the `pulse`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.inside import current_lease

from .client_channels import Client

if TYPE_CHECKING:
    from .engine import Engine
    from .model_entries import Loaded

_OWNERS = ("add", "load", "unload", "retire", "forget", "interrupt", "pulse")


def answer(engine: Engine, client: Client, call: int, body: bytes) -> None:
    """Answer now, or once the loader has done it."""

    def finish(work: Callable[[], Any]) -> None:
        try:
            client.reply(call, work())
        except ServingError as error:
            client.fail(call, error.code, error.message)
        except (KeyError, TypeError, ValueError) as error:
            client.fail(call, Code.INVALID_ARGUMENT, f"The question makes no sense: {error!r}.")
        engine.flush([client])

    try:
        question = json.loads(body)
        verb = question["ask"]
    except (ValueError, KeyError, TypeError, RecursionError):
        client.fail(call, Code.INVALID_ARGUMENT, "A question is an object with `ask` in it.")
        return
    if verb in _OWNERS and not client.owner:
        client.fail(call, Code.PERMISSION_DENIED, f"Only the engine's owner may {verb}.")
    elif verb == "hello":
        finish(lambda: {"pid": os.getpid()})
    elif verb == "models":
        finish(lambda: _models(engine))
    elif verb == "pulse":
        finish(lambda: [run._asdict() for run in engine.scheduler.progress()])
    elif verb == "interrupt":
        finish(lambda: engine.loader.interrupt(str(question["model"]), int(question["version"])))
    elif verb == "add":
        finish(
            lambda: engine.scheduler.add(
                str(question["model"]),
                int(question["version"]),
                str(question["path"]),
                dict(question.get("options") or {}),
                int(question.get("number") or 0),
                float(question.get("suspect") or 0.0),
            )
        )
    elif verb == "retire":
        finish(lambda: engine.scheduler.retire(str(question["model"]), int(question["version"])))
    elif verb in ("load", "describe"):
        # The loader may have much to do, and nothing to do with this one.
        there = partial(describe, engine, question)
        if _is_there(engine, question):
            finish(there)
        else:
            engine.loader.later(lambda: finish(there))
    elif verb in ("unload", "forget"):
        act = engine.loader.unload if verb == "unload" else engine.loader.forget
        engine.loader.later(
            lambda: finish(lambda: act(str(question["model"]), int(question["version"])))
        )
    else:
        client.fail(call, Code.UNIMPLEMENTED, f"An engine cannot be asked {verb!r}.")


def _models(engine: Engine) -> list[dict[str, Any]]:
    held = current_lease.current()
    device = "" if held is None else held.device
    return [{**row, "device": device} for row in engine.scheduler.models()]


def describe(engine: Engine, question: dict[str, Any]) -> dict[str, Any]:
    """The signatures of a model, which is loaded for that if need be."""
    model = str(question["model"])
    version = engine.scheduler.resolve(model, question.get("version"))
    return {
        "model": model,
        "version": version,
        "signatures": signatures(engine.loader.bring(model, version)),
    }


def _is_there(engine: Engine, question: dict[str, Any]) -> bool:
    try:
        model = str(question["model"])
        version = engine.scheduler.resolve(model, question.get("version"))
    except (ServingError, KeyError, TypeError):
        return True  # There is nothing to load.
    return engine.scheduler.store.use(model, version) is not None


def signatures(loaded: Loaded) -> dict[str, Any]:
    """As the records of `sublet.serving.catalogue` are read from."""
    return {
        name: {
            "method": bound.method,
            **{
                side: {
                    key: {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape}
                    for key, spec in getattr(bound, side).items()
                }
                for side in ("inputs", "outputs")
            },
        }
        for name, bound in loaded.signatures.items()
    }
