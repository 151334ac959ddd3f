"""The site of the documentation."""

import json
from pathlib import Path

import pytest

import sublet
from handbook import reference
from handbook.__main__ import build
from handbook.pages import ROOT
from sublet.cli.verbs import VERBS


def test_the_reference_names_all_that_is_public() -> None:
    page = reference.api()
    for name in sublet.__all__:
        assert name.startswith("__") or f"\n### {name}\n" in page, name
    commands = reference.cli()
    for verb in VERBS:
        assert f"\n## {verb}\n" in commands, verb
        assert f"Usage: sublet {verb}" in commands


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "handbook" / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f" docs/{page.name}\n" in navigation, page.name


@pytest.mark.slow
def test_the_site_is_built_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    assert build(tmp_path) == 0
    assert "Run many TensorFlow programs" in (tmp_path / "index.html").read_text()
    words = json.loads((tmp_path / "search.json").read_text())
    assert words
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        for sign in ('src="http', 'rel="stylesheet" href="http'):
            assert sign not in text, f"{page.name} needs a network"
