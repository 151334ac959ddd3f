"""Texts for clients name no paths of the server: where a model lies is nobody's affair. Pure.

What TensorFlow says of a model that cannot be loaded or run is full of them. The server's log, and
programs of its own user, get the whole text.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from sublet.serving.catalogue import Catalogue

Names = Mapping[str, str]  # Directories of the server, and what clients call them.

HIDDEN = "[path]"
# An absolute path, up to what cannot well be part of one. TensorFlow's names of devices and the
# insides of words (a/b) are none, nor are addresses (https://a/b).
_PATH = re.compile(
    r"""(?:(?<![\w.:/\\\]-])(?:\w+://)?|(?<=:)(?!//))"""
    r"""/(?!job:)[^\s'"`,;()<>\[\]{}]*[^\s'"`,;()<>\[\]{}.:!?]"""
)


def redact(text: str, names: Names) -> str:
    """The same text: a model's directory becomes its name, any other path is taken out."""
    if "/" not in text:
        return text
    if names:
        text = _known(tuple(names)).sub(lambda found: names[found[0]], text)
    return _PATH.sub(HIDDEN, text)


def redacted(catalogue: Catalogue, names: Names) -> Catalogue:
    """The same catalogue, for front ends: what they have, clients can see."""
    models = {}
    for name, model in catalogue.models.items():
        wrong = {
            number: replace(one, error=redact(one.error, names))
            for number, one in model.versions.items()
            if one.error
        }
        models[name] = replace(model, versions={**model.versions, **wrong}) if wrong else model
    return Catalogue(models)


@lru_cache(4)
def _known(paths: tuple[str, ...]) -> re.Pattern[str]:
    """Finds these, also with spaces in them; the longest first, as one may begin another."""
    ordered = sorted(paths, key=len, reverse=True)
    return re.compile(f"(?:{'|'.join(map(re.escape, ordered))})(?![\\w.-])")
