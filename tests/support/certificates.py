"""Keys and certificates, made by openssl."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


class Pair(NamedTuple):
    key: str
    certificate: str


def make_pair(folder: Path, name: str) -> Pair:
    """A key and a certificate that it has signed itself."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*words.split(), *names, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return Pair(key.read_text(), certificate.read_text())
