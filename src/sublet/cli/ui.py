"""`sublet ui`: the web page."""

import click

from sublet.cli.terminal_text import say
from sublet.errors import BadRequest
from sublet.home import Home


@click.command("ui")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on.", metavar="IP"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The port; 0 for any. Default: 8585, or any if that is taken.",
)
def command(host: str, port: int | None) -> int:
    """Show devices and jobs on a web page, live: memory over time, logs, why jobs wait.

    \b
    sublet ui                          prints a link, which works once
    ssh -L 8585:localhost:8585 box     to see it from another machine
    """
    try:
        from sublet.page.server import serve
    except ImportError as error:
        missing = (error.name or "a package").partition(".")[0]
        raise BadRequest(
            f"The page needs {missing}, which is not installed.", "pip install 'sublet[ui]'"
        ) from None
    serve(Home.find(), host, port, say)
    return 0
