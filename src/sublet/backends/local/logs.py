"""placeholder"""

import os


def open_streams(directory: str, run: str, split: bool) -> list[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    out = os.open(os.path.join(directory, f"{run}.log"), flags, 0o600)
    return [null, out, os.dup(out)]
