"""The files of the page: our own, and nothing in them that reads text as code or asks elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path

import sublet.page

STATIC = Path(sublet.page.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
_NAMESPACE = "http://www.w3.org/2000/svg"


def test_no_script_reads_text_as_html_or_code() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML"
        r"|createContextualFragment|\beval\b|new Function|srcdoc|javascript:"
    )
    assert SCRIPTS
    for script in SCRIPTS:
        assert not forbidden.search(script.read_text()), script.name


def test_nothing_comes_from_elsewhere() -> None:
    for file in STATIC.iterdir():
        text = file.read_text().replace(_NAMESPACE, "")
        assert not re.search(r"https?:|//\w+\.\w|@import|url\(", text), file.name


def test_the_page_has_no_script_or_style_in_its_text() -> None:
    """The content security policy refuses both."""

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            names = {name for name, _ in attrs}
            assert tag != "style"
            assert tag != "script" or "src" in names
            assert "style" not in names
            assert not any(name.startswith("on") for name in names)

    Check().feed((STATIC / "index.html").read_text())


def test_scripts_import_only_files_that_are_there() -> None:
    for script in SCRIPTS:
        for name in re.findall(r'from "(.*)"', script.read_text()):
            assert (STATIC / name).is_file(), f"{script.name}: {name}"
