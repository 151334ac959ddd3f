"""Files of public repositories at one commit, from a local copy or from GitHub.

Only text is taken: pictures and archives are large, and the data are ours. A program without a
commit is one of ours.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.corpus import Program
from bench.corpus.notebooks import script

_SUFFIXES = (".py", ".ipynb", ".txt", ".csv", ".json")
_MOST = 2 << 20
_OURS = Path(__file__).parents[1] / "programs"


class Missing(Exception):
    """A repository or a file that cannot be had."""


def bring(program: Program, copies: Path, into: Path) -> Path:
    """Put a program and the text files beside it into a directory; returns the script to run.

    `copies` has git directories named owner+name; what it lacks is fetched into it.
    """
    if not program.commit:
        return Path(shutil.copy(_OURS / program.repository.split("/")[1] / program.path, into))
    git = ["git", f"--git-dir={_repository(program, copies)}"]
    folder, _, name = program.path.rpartition("/")
    listed = _output([*git, "ls-tree", "-r", "-l", program.commit, "--", f"{folder or '.'}/"])
    for line in listed.decode().splitlines():
        facts, _, path = line.partition("\t")
        _, _, blob, size = facts.split()
        if not path.endswith(_SUFFIXES) or not size.isdigit() or int(size) > _MOST:
            continue
        if path.endswith(".ipynb") and path != program.path:
            continue
        target = into / Path(path).relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_output([*git, "cat-file", "blob", blob]))
    source = into / name
    if not source.exists():
        raise Missing(f"{program.repository} has no {program.path} at {program.commit}")
    if source.suffix != ".ipynb":
        return source
    made = source.with_suffix(".py")
    made.write_text(script(source.read_text()))
    source.unlink()
    return made


def texts(program: Program, copies: Path, folders: list[str]) -> Iterator[tuple[str, str]]:
    """Paths and texts of all scripts and notebooks below these folders of a repository; what its
    copy lacks is left out."""
    git = ["git", f"--git-dir={_repository(program, copies)}"]
    places = [f"{folder}/" if folder else "." for folder in folders]
    listed = _output([*git, "ls-tree", "-r", "-l", program.commit, "--", *places])
    for line in listed.decode().splitlines():
        facts, _, path = line.partition("\t")
        _, _, blob, size = facts.split()
        if path.endswith((".py", ".ipynb")) and size.isdigit() and int(size) <= _MOST:
            with contextlib.suppress(Missing):
                data = _output([*git, "cat-file", "blob", blob])
                yield path, data.decode("utf-8", errors="replace")


def _repository(program: Program, copies: Path) -> Path:
    copy = copies / program.repository.replace("/", "+")
    for git in (copy / "repo" / ".git", copy / "repo", copy / ".git", copy):
        if (git / "objects").is_dir() and (git / "HEAD").is_file():
            return git
    url = f"https://github.com/{program.repository}"
    _output(["git", "init", "--quiet", "--bare", str(copy)])
    _output(["git", f"--git-dir={copy}", "fetch", "--quiet", "--depth=1", url, program.commit])
    return copy


def _output(words: list[str]) -> bytes:
    ended = subprocess.run(words, capture_output=True, check=False)
    if ended.returncode != 0:
        raise Missing(f"{' '.join(words[:3])}: {ended.stderr.decode(errors='replace').strip()}")
    return ended.stdout
