"""Where built fences are, and whether one may be used.

A fence is a directory that holds `libcuda.so.1`, built from `inside/fence.c` for one driver's
library (`client/fence_build.py`). It is named by a digest of all that went into it, of which the
first part is the version: that of the source alone. A broker uses fences of its own version only.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat

SOURCE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inside", "fence.c"
)
LIBRARY = "libcuda.so.1"
DIGEST = "digest"
"""The file beside the library that says what its bytes add up to."""
ONE_GPU = "it holds programs on one GPU only"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@functools.cache
def version() -> str:
    """The version of the fence that this Sublet has: sixteen digits."""
    with open(SOURCE, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def directory(home: str, driver: str) -> str:
    """The directory of the fence for the driver's library at this path."""
    name = f"{version()}-{hashlib.sha256(os.fsencode(driver)).hexdigest()[:16]}"
    return os.path.join(home, "fence", name)


def note_digest(fence: str) -> None:
    """Note what was built, so that a library that has changed since is not used."""
    with open(os.path.join(fence, LIBRARY), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    with open(os.path.join(fence, DIGEST), "w", encoding="ascii") as noted:
        noted.write(digest)


def why_unusable(fence: str) -> str:
    """Why programs are not to be run with this fence; empty if they may be."""
    if os.path.basename(fence).partition("-")[0] != version():
        return "it was built by another version of Sublet"
    library = os.path.join(fence, LIBRARY)
    try:
        for path in (fence, library):
            found = os.lstat(path)
            if found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
                return f"others can write to {path}"
        with open(library, "rb") as file, open(os.path.join(fence, DIGEST), "rb") as noted:
            if hashlib.sha256(file.read()).hexdigest().encode() != noted.read(128):
                return f"{library} is not what was built"
    except OSError as error:
        return f"{fence}: {error.strerror}"
    return ""
