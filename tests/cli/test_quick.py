"""The usual command lines, read without click, mean what click makes of them."""

import inspect
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublet.cli import quick
from sublet.cli.foreground import run
from sublet.cli.run import command
from sublet.client import job_request

TOGETHER = ("-nfirst", "-qn")
"""Letters written together, which only click takes apart."""
words = st.sampled_from(
    (
        *quick.VALUES,
        *quick.FLAGS,
        *quick.OPTIONAL,
        *TOGETHER,
        *("--", "-", "-m", "--help", "--memory=2GiB", "--name=", "--me", "--report=a=b"),
        *("train.py", "2GiB", "grow", "--epochs", "", "é", "--profile=d"),
    )
)


def by_click(line: list[str]) -> dict[str, Any]:
    """What click makes of this; raises what it has against it."""
    with command.make_context("run", list(line)) as context:
        return dict(context.params)


@given(st.lists(words, max_size=6))
def test_what_is_read_here_is_read_alike_by_click(line: list[str]) -> None:
    options = quick.read(line)
    if options is None:
        return
    assert by_click(["x"]) | options == by_click(line)


@given(st.lists(words, max_size=6))
def test_what_click_has_something_against_is_left_to_click(line: list[str]) -> None:
    try:
        params = by_click(line)
    except (click.ClickException, click.exceptions.Exit):
        assert quick.read(line) is None
    else:
        left = quick.read(line) is None
        assert not left or not params["words"] or any(word in line for word in TOGETHER)


def test_what_is_left_out_means_the_same_here_and_to_click() -> None:
    taken = inspect.signature(job_request.job).parameters | inspect.signature(run).parameters
    defaults = {name: one.default for name, one in taken.items() if name != "options"}
    assert defaults | {"words": ("x",)} == by_click(["x"])


def test_every_option_of_click_is_known_here() -> None:
    spelled = {
        name: parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }
    assert spelled == quick.VALUES | quick.FLAGS | quick.OPTIONAL
    negated = {
        name: parameter.name for parameter in command.params for name in parameter.secondary_opts
    }
    assert negated == quick.OFF


@pytest.mark.parametrize("line", [[], ["--memory"], ["--help"], ["--"], ["-q"], ["--bananas", "x"]])
def test_the_unusual_is_left_to_click(line: list[str]) -> None:
    assert quick.read(line) is None


def test_options_end_where_the_program_begins() -> None:
    assert quick.read(["-n", "x", "-m", "pkg", "-q"]) == {"name": "x", "words": ("-m", "pkg", "-q")}
    assert quick.read(["--memory=2GiB", "-q", "train.py", "--memory", "x", "--", "-q"]) == {
        "memory": "2GiB",
        "quiet": True,
        "words": ("train.py", "--memory", "x", "--", "-q"),
    }
