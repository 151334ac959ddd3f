"""Names of files on a command line: what a shell offers for them is its own affair."""

import click
from click.shell_completion import CompletionItem


def complete_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Leave it to the shell. With no answer at all it would offer nothing."""
    return [CompletionItem(incomplete, type="file")]
