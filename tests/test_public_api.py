"""What users import from `sublet`, and what README and docs promise of it."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import sublet
from sublet import errors
from sublet.client import job_request

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ERRORS = [name for name, one in vars(errors).items() if inspect.isclass(one)]


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_can_be_caught_by_its_name_in_sublet(name: str) -> None:
    assert name in sublet.__all__
    assert getattr(sublet, name) is getattr(errors, name)


@pytest.mark.parametrize("name", sublet.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(sublet, name) is not None
    assert name in dir(sublet)


def test_a_name_that_is_not_public_is_none_of_the_packages() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nobody'"):
        _ = sublet.Nobody  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_in_the_docs_can_be_imported(page: Path) -> None:
    for first, rest in set(re.findall(r"\bsublet\.([A-Za-z_]\w*)((?:\.\w+)*)", page.read_text())):
        if first in sublet.__all__:
            found: Any = getattr(sublet, first)
        else:
            assert first in ("joblib", "multiprocessing", "ray", "sweeps"), (
                f"{page.name} names sublet.{first}"
            )
            found = importlib.import_module(f"sublet.{first}")
        for name in filter(None, rest.split(".")):
            found = getattr(found, name)


@pytest.mark.parametrize("function", [sublet.submit, sublet.submit_array])
def test_an_editor_can_complete_every_option_of_a_job_in_the_queue(function: Any) -> None:
    (options,) = get_type_hints(function)["options"].__args__
    named = {*inspect.signature(function).parameters, *get_type_hints(options)}
    taken = {
        *inspect.signature(job_request.job).parameters,
        *inspect.signature(job_request.job_without_client).parameters,
    }
    assert taken <= named


@pytest.mark.parametrize("function", [sublet.submit, sublet.run, sublet.lease])
def test_an_unknown_option_is_refused_by_its_name(function: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'memori'"):
        function(["true"], memori="2GiB")
