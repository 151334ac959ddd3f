"""`python -m handbook [DIRECTORY]`: build the site, which any web server can serve."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from handbook import pages, reference


def build(target: Path) -> int:
    """Build the site into this directory; returns 0, or 1 if a link leads nowhere."""
    with tempfile.TemporaryDirectory(prefix="handbook-") as directory:
        sources = Path(directory) / "pages"
        pages.lay_out(sources)
        place = sources / "docs" / "reference"
        place.mkdir(parents=True)
        (place / "api.md").write_text(reference.api())
        (place / "cli.md").write_text(reference.cli())
        # The design pages come last in the navigation, by their own titles.
        design = sorted(path.name for path in (sources / "docs" / "design").glob("*.md"))
        settings = (pages.ROOT / "handbook" / "mkdocs.yml").read_text().rstrip()
        settings = "\n".join([settings, *(f"      - docs/design/{name}" for name in design)])
        config = Path(directory) / "mkdocs.yml"
        config.write_text(f"{settings}\ndocs_dir: pages\nsite_dir: site\n")
        words = [
            sys.executable,
            "-m",
            "zensical",
            "build",
            "--strict",
            "--config-file",
            str(config),
        ]
        built = subprocess.run(words, capture_output=True, text=True)
        if built.returncode:
            print(built.stdout, built.stderr, file=sys.stderr)
            return built.returncode
        shutil.copytree(Path(directory) / "site", target, dirs_exist_ok=True)
        return 0


def main() -> int:
    """Say where the site is."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    code = build(target)
    if code == 0:
        print(f"Read it: {sys.executable} -m http.server --directory {target}")
    return code


if __name__ == "__main__":
    sys.exit(main())
