"""`sublet models`: what the engines of this user serve."""

import textwrap

import click
from msgspec.structs import replace

from sublet.cli.terminal_text import plain_lines, print_json, say
from sublet.text import plain
from sublet.units import format_bytes, format_seconds, shorten

_NONE = "no models are being served; try: sublet serve models/"


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """List the models being served: memory, load time, requests, last use."""
    from sublet.serving.client.engine_directory import list_models

    rows = list_models()
    if as_json:
        print_json({"models": rows})
        return 0
    if not rows:
        say(_NONE)
        return 0
    rows = [replace(row, model=plain(row.model), device=plain(row.device)) for row in rows]
    several = len({row.device for row in rows if row.device}) > 1
    width = min(max(len("model"), *(len(row.model) for row in rows)), 11 if several else 17)
    on = f"{'on':<6}" if several else ""
    say(
        f"{'model':<{width}} {on}{'version':>10}  {'state':<9}{'memory':>9}{'load':>11}"
        f"{'requests':>9}{'idle':>12}".rstrip()
    )
    for row in rows:
        name = shorten(row.model, width)
        on = f"{shorten(row.device, 6):<6}" if several else ""
        memory = format_bytes(row.bytes) if row.bytes else "-"
        load = format_seconds(row.load_seconds) if row.load_seconds else "-"
        idle = "-" if row.idle is None else format_seconds(row.idle)
        say(
            f"{name:<{width}} {on}{row.version:>10}  {plain(row.state):<9}{memory:>9}{load:>11}"
            f"{row.requests:>9}{idle:>12}"
        )
        if row.error:
            say(textwrap.indent(textwrap.fill(plain_lines(row.error), 76), "    "))
    return 0
