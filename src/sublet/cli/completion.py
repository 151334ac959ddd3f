"""Shell completion of file names and of models."""

import contextlib

import click
from click.shell_completion import CompletionItem


def complete_files(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Have the shell complete file names as it does by itself."""
    return [CompletionItem(incomplete, type="file")]


def complete_models(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The models that are served now, and files."""
    from sublet.errors import SubletError

    names: set[str] = set()
    with contextlib.suppress(ImportError, OSError, SubletError):
        from sublet.serving.client.engine_directory import list_models

        names = {row.model for row in list_models()}
    found = [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
    return [*found, *complete_files(context, parameter, incomplete)]
