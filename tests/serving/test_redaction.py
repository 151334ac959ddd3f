"""What clients read names no paths of the server."""

import pytest

from sublet.channel.codes import Code
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.redaction import redact, redacted

NAMES = {"/srv/my models/a": "a", "/srv/my models/a-large": "a-large", "/home/u/.sublet": "[path]"}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/srv/my models/a/1 is empty. Copy it.", "a/1 is empty. Copy it."),
        ("no file /srv/my models/a-large/1/x", "no file a-large/1/x"),
        ("no file /srv/my models/abc/1", "no file [path] models/abc/1"),
        ("'/etc/passwd': denied", "'[path]': denied"),
        ('File "/usr/lib/python3/x.py", line 3', 'File "[path]", line 3'),
        ("failed: /a/b; /c/d.", "failed: [path]; [path]."),
        ("file:///etc/passwd is no model", "[path] is no model"),
        ("no such file:/etc/passwd", "no such file:[path]"),
        ("ram:///etc/passwd, see https://a.org/b", "[path], see https://a.org/b"),
        ("see /home/u/.sublet/engines/1.sock", "see [path]/engines/1.sock"),
        ("on /job:localhost/replica:0/device:CPU:0", "on /job:localhost/replica:0/device:CPU:0"),
        ("node model/dense/MatMul, 3/4, and/or", "node model/dense/MatMul, 3/4, and/or"),
        ("nothing", "nothing"),
    ],
)
def test_paths_are_taken_out_and_models_keep_their_names(text: str, answer: str) -> None:
    assert redact(text, NAMES) == answer


def test_front_ends_do_not_even_know() -> None:
    good = Version("a", 1, State.AVAILABLE)
    bad = Version("a", 2, State.END, Code.NOT_FOUND, "/srv/my models/a/2 cannot be loaded")
    found = redacted(Catalogue({"a": Model("a", {1: good, 2: bad}, {"x": 1})}), NAMES)
    assert found.models["a"].versions[1] is good
    assert found.models["a"].versions[2].error == "a/2 cannot be loaded"
    assert found.models["a"].labels == {"x": 1}
