"""`sublet config`: what is set, and where."""

import importlib
import os
import sys
from typing import Any

import click

from sublet.cli import settings
from sublet.cli.terminal_text import print_json, say
from sublet.views import table

_COLUMNS = (table.Column("setting"), table.Column("value"), table.Column("from"))


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("verb", type=click.Choice(tuple(settings.VERBS)), default="run")
def command(verb: str, as_json: bool) -> int:
    """Show the settings of a command, and where each comes from.

    \b
    sublet config            for `sublet run`
    sublet config submit     for `sublet submit`
    """
    found = settings.settings(verb)
    defaults = _defaults(verb)
    rows = [
        (name.replace("_", "-"), *found.get(name, (defaults[name], "default")))
        for name in settings.VERBS[verb]
    ]
    if as_json:
        values = [{"name": name, "value": value, "from": source} for name, value, source in rows]
        files = {"user": settings.user_file(), "project": settings.project_file()}
        print_json({"command": verb, "settings": values, "files": files}, indent=2)
        return 0
    cells = [(name, _written(value), _short(source)) for name, value, source in rows]
    for line in table.lay_out(_COLUMNS, cells, table.width_of(sys.stdout)):
        say(line)
    missing = "" if os.path.exists(settings.user_file()) else " (not there)"
    say(f"\nUser's file: {_short(settings.user_file())}{missing}")
    project = settings.project_file()
    say(f"Project's: {_short(project) if project else 'no pyproject.toml with [tool.sublet]'}")
    return 0


def _defaults(verb: str) -> dict[str, Any]:
    """What a command's own defaults are."""
    command: click.Command = importlib.import_module(f"sublet.cli.{verb}").command
    with click.Command.make_context(command, verb, ["program.py"]) as context:
        return dict(context.params)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "–" if value is None else str(value)


def _short(path: str) -> str:
    """A path as people write it."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(f"{home}{os.sep}") else path
