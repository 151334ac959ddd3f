"""Shell completion of file names."""

import click
from click.shell_completion import CompletionItem


def complete_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Have the shell complete file names as it does by itself."""
    return [CompletionItem(incomplete, type="file")]
