"""What `sublet serve` does and shows: one server, in the foreground."""

import asyncio
import os
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sublet.cli.terminal_text import plain_lines, print_json, say
from sublet.text import plain
from sublet.units import format_bytes, format_seconds, shorten

if TYPE_CHECKING:
    from sublet.serving.catalogue import Version
    from sublet.serving.control.config import Settings
    from sublet.serving.control.server import Server
    from sublet.serving.metrics import Row

_WIDTH = 80


def serve(settings: "Settings", as_json: bool, tell: Callable[[str], None]) -> int:
    """Serve until a signal ends it; the exit code."""
    from sublet import descriptors
    from sublet.serving.control import config
    from sublet.serving.control.server import Server

    descriptors.raise_limit()
    config.models(settings)  # What is wrong with them is said before anything is started.

    async def run() -> int:
        server = Server(settings, tell)
        return await server.serve(lambda rows: _show(server, rows, as_json))

    return asyncio.run(run())


def _show(server: "Server", rows: "list[Row]", as_json: bool) -> None:
    known = {(row.model, row.version): row for row in rows}
    models = [
        _facts(version, known.get((version.model, version.number)))
        for _, model in sorted(server.reconciler.catalogue.models.items())
        for _, version in sorted(model.versions.items())
    ]
    if as_json:
        print_json({"ready": True, "pid": os.getpid(), **server.addresses, "models": models})
        return
    say(table(models))
    for name, text in server.reconciler.troubles().items():
        say(textwrap.fill(f"{plain(name)}: {plain(text)}", _WIDTH))
    for name, address in server.addresses.items():
        if address:
            say(f"{'REST' if 'rest' in name else 'gRPC'} on {plain(address)}")


def _facts(version: "Version", row: "Row | None") -> dict[str, Any]:
    return {
        "model": version.model,
        "version": version.number,
        "state": version.state.name,
        "error": version.error,
        "bytes": row.bytes if row else 0,
        "load_seconds": row.load_seconds if row else 0.0,
        "in_memory": bool(row and row.state == "loaded"),
        "devices": list(version.devices),
    }


def _state(one: dict[str, Any]) -> str:
    if one["error"]:
        return "failed"
    if one["state"] == "AVAILABLE":
        return "ready" if one["in_memory"] else "on demand"
    return str(one["state"]).lower()


def table(models: list[dict[str, Any]]) -> str:
    """One line for each version, and more for what is wrong with one; at most 80 columns."""
    names = [plain(one["model"]) for one in models]
    widest = max([5, *map(len, names)])
    several = any(one["devices"] for one in models)
    width = min(widest, 20 if several else 30)
    lines = [f"{'model':<{width}}  {'version':>10}  {'state':<10} {'memory':>9}  {'load':>8}"]
    lines[0] += "  on" * several
    for name, one in zip(names, models, strict=True):
        memory = format_bytes(one["bytes"]) if one["bytes"] else "-"
        load = format_seconds(one["load_seconds"]) if one["load_seconds"] else "-"
        state = _state(one)
        where = f"  {shorten(plain(', '.join(one['devices'])), 14)}" if one["devices"] else ""
        lines.append(
            f"{shorten(name, width):<{width}}  {one['version']:>10}  {state:<10} {memory:>9}"
            f"  {load:>8}{where}"
        )
        if one["error"]:
            lines += textwrap.wrap(
                plain_lines(one["error"]), _WIDTH, initial_indent="    ", subsequent_indent="    "
            )
    return "\n".join(lines)
