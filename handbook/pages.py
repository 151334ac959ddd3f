"""Lays out the sources of the site: the repository's pages where they are, and what they link to.

Pages stay where they are in the repository, so their links lead to the same places.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def lay_out(target: Path) -> None:
    """Copy all pages into an empty directory, with all files that they link to."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    seen: set[Path] = set()
    while pages:
        page = pages.pop().resolve()
        if page in seen:
            continue
        seen.add(page)
        place = target / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, place)
        if page.suffix == ".md":
            linked = (page.parent / link for link in _LINK.findall(page.read_text()))
            pages += [one for one in linked if one.is_file()]
