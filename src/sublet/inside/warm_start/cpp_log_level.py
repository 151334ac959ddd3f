"""How much TensorFlow's C++ log says, for a program that sets it after the library was loaded.

A fresh interpreter reads TF_CPP_MIN_LOG_LEVEL when `import tensorflow` loads the library. A forked
one has loaded it long before the script's first line, so its wish is carried out when the runtime
starts. Where this TensorFlow has no such switch, it says more than was asked: no harm.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
from collections.abc import Mapping

VARIABLE = "TF_CPP_MIN_LOG_LEVEL"

_RELEASES = (
    "20250814",
    "20250512",
    "20250127",
    "20240722",
    "20240116",
    "20230802",
    "20230125",
    "20220623",
)
"""Of Abseil, whose log it is: the release is part of the switch's name."""


def follow(environ: Mapping[str, str]) -> None:
    """Have the log say as little as the environment asks for."""
    level = environ.get(VARIABLE, "")
    if not (level.isascii() and level.isdigit()):
        return
    with contextlib.suppress(Exception):
        from tensorflow.python.platform import sysconfig

        (path,) = glob.glob(os.path.join(sysconfig.get_lib(), "libtensorflow_framework.so*"))
        library = ctypes.CDLL(path)
        for release in _RELEASES:
            name = f"_ZN4absl12lts_{release}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
            switch = getattr(library, name, None)
            if switch is not None:
                switch(ctypes.c_int(int(level)))
                return
