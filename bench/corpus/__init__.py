"""Public programs: which they are, where they come from, and the data that we make for them.

Their code is not ours and is never committed: `programs.toml` names repositories, commits and
paths, and `sources` brings the files. Data sets are made by `data`, small and with fixed seeds.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("programs.toml")


@dataclass(frozen=True)
class Program:
    """One script or notebook of a repository."""

    repository: str
    """owner/name at GitHub."""
    commit: str
    path: str
    full: bool = False
    """It expects data sets of their true size."""

    @property
    def name(self) -> str:
        """Short, and unlike those of all others."""
        return f"{self.repository.split('/')[1]}/{self.path}"


def programs(path: Path = LIST) -> list[Program]:
    """All of them, in the order of the file."""
    document = tomllib.loads(path.read_text())
    return [
        Program(repository["name"], repository["commit"], program, kind == "full")
        for repository in document["repository"]
        for kind in ("programs", "full")
        for program in repository.get(kind, ())
    ]
