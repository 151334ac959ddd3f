"""What an engine can be asked, beside running its models: JSON in, JSON out.

Everybody may ask `hello`, `models`, `history` and `describe`, and have it `profile`. Only the owner
may `add`, `load`, `unload`, `retire`, `forget`, `interrupt`, and ask for the `pulse`.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sublet.channel.codes import Code, invalid_argument
from sublet.errors import ServingError
from sublet.inside import current_lease

from .client_channels import Client
from .savedmodel_proto import Signature

if TYPE_CHECKING:
    from .engine import Engine
    from .model_entries import Loaded

Question = dict[str, Any]
_EVERYBODY = ("hello", "models", "history", "describe", "profile", "end profile")


def answer(engine: "Engine", client: Client, call: int, body: bytes) -> None:
    """Answer now, or in a loader's thread if it takes long."""

    def finish(work: Callable[[], Any]) -> None:
        try:
            client.reply(call, work())
        except ServingError as error:
            client.fail(call, error)
        except (KeyError, TypeError, ValueError) as error:
            client.fail(call, invalid_argument(f"The question makes no sense: {error!r}."))
        engine.flush([client])

    try:
        question = json.loads(body)
        verb = question["ask"]
    except (ValueError, KeyError, TypeError, RecursionError):
        client.fail(call, invalid_argument("A question is an object with `ask` in it."))
        return
    act = _VERBS.get(verb) if isinstance(verb, str) else None
    if act is None:
        unknown = f"An engine cannot be asked {verb!r}."
        client.fail(call, ServingError(unknown, Code.UNIMPLEMENTED))
    elif verb not in _EVERYBODY and not client.owner:
        refusal = f"Only the engine's owner may {verb}."
        client.fail(call, ServingError(refusal, Code.PERMISSION_DENIED))
    elif verb in ("unload", "forget", "profile") or (
        # The loader may have much to do, and nothing to do with a model that is in memory.
        verb in ("load", "describe") and not _is_loaded(engine, question)
    ):
        engine.loader.later(partial(finish, partial(act, engine, question)))
    else:
        finish(partial(act, engine, question))


def _hello(engine: "Engine", question: Question) -> Any:
    return {"pid": os.getpid()}


def _models(engine: "Engine", question: Question) -> Any:
    held = current_lease.current()
    device = "" if held is None else held.device
    return [{**row, "device": device} for row in engine.scheduler.models()]


def _pulse(engine: "Engine", question: Question) -> Any:
    return engine.scheduler.progress()


def _add(engine: "Engine", question: Question) -> None:
    engine.scheduler.add(
        *_key(question),
        str(question["path"]),
        dict(question.get("options") or {}),
        int(question.get("number") or 0),
        float(question.get("suspect") or 0.0),
    )


def _profile(engine: "Engine", question: Question) -> str:
    return engine.profiler.run(
        str(question["session"]),
        float(question["seconds"]),
        int(question["host_level"]),
        int(question["device_level"]),
    )


def describe(engine: "Engine", question: Question) -> dict[str, Any]:
    """The signatures of a model, which is loaded for that if need be."""
    model = str(question["model"])
    version = engine.scheduler.resolve(model, question.get("version"))
    found = signatures(engine.loader.bring(model, version))
    return {"model": model, "version": version, "signatures": found}


_VERBS: "dict[str, Callable[[Engine, Question], Any]]" = {
    "hello": _hello,
    "models": _models,
    "history": lambda engine, question: engine.scheduler.history(*_key(question)),
    "describe": describe,
    "load": describe,
    "add": _add,
    "pulse": _pulse,
    "profile": _profile,
    "end profile": lambda engine, question: engine.profiler.end(str(question["session"])),
    "interrupt": lambda engine, question: engine.loader.interrupt(*_key(question)),
    "retire": lambda engine, question: engine.scheduler.retire(*_key(question)),
    "unload": lambda engine, question: engine.loader.unload(*_key(question)),
    "forget": lambda engine, question: engine.loader.forget(*_key(question)),
}


def _key(question: Question) -> tuple[str, int]:
    return str(question["model"]), int(question["version"])


def _is_loaded(engine: "Engine", question: Question) -> bool:
    try:
        model = str(question["model"])
        version = engine.scheduler.resolve(model, question.get("version"))
    except (ServingError, KeyError, TypeError):
        return True  # There is nothing to load.
    return engine.scheduler.store.use(model, version) is not None


def signatures(loaded: "Loaded") -> dict[str, Any]:
    """As a server or a client reads them again."""
    return {
        name: dataclasses.asdict(Signature(bound.method, bound.inputs, bound.outputs))
        for name, bound in loaded.signatures.items()
    }
