"""Scripts, notebooks and logs, as `sublet doctor` reads them.

The first byte says which it is.
"""

from pathlib import Path

from fuzz.driver import Target
from sublet.doctor.machine import Machine
from sublet.doctor.reading import check_log, check_script

_CORPUS = Path(__file__).parents[2] / "doctor" / "corpus"
_KINDS = (("sick", ".py"), ("sick", ".ipynb"), ("logs", ".log"))


def target() -> Target:
    seeds = [
        bytes([kind]) + path.read_bytes()
        for kind, (folder, ending) in enumerate(_KINDS)
        for path in sorted((_CORPUS / folder).glob(f"*{ending}"))
    ]
    return Target(_feed, seeds)


def _feed(data: bytes) -> None:
    kind = data[0] % len(_KINDS) if data else 0
    text = data[1:].decode("utf-8", errors="replace")
    name = f"x{_KINDS[kind][1]}"
    found = check_log(name, text) if name.endswith(".log") else check_script(name, text, Machine())
    for one in found:
        assert one.rule
        assert one.sentence
        assert one.fix
        assert one.place.startswith(name)
