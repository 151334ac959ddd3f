"""Whether the packages of the extra `serve` are installed; imports none of them."""

import importlib.util

from sublet.errors import BadRequest

_NEEDED = ("numpy", "google.protobuf", "httptools", "orjson")


def require() -> None:
    """Raises BadRequest that names what is missing."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise BadRequest(
            f"Serving needs packages that are not installed: {', '.join(missing)}.",
            "Install them: pip install 'sublet[serve]'.",
        )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # Of the package that it would be in.
        return False
