"""Files that the documentation names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FILES = [
    f"/{path.relative_to(ROOT)}"
    for folder in ("src", "tests", "bench", "demo", "docs", "examples")
    for path in (ROOT / folder).rglob("*.*")
] + [f"/{path.name}" for path in ROOT.glob("*.*")]
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|c|toml|md|ipynb))(?:::\w+)?`")
_USERS_OWN = {"train.py", "evaluate.py", "sweep.py", "serve.py", "app.py"}
"""Programs of whoever reads the page."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    """A page may leave folders out that its context names: `heads.py` for `rest/heads.py`."""
    for name in set(_FILE.findall(page.read_text())) - _USERS_OWN:
        assert any(path.endswith(f"/{name}") for path in FILES), name
