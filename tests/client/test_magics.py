"""`%sublet` in a notebook."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

import sublet
from sublet.client import magics
from sublet.errors import BadRequest
from support.sandbox import Sandbox


@pytest.fixture
def shell() -> InteractiveShell:
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "sublet")
    return shell


def test_the_magic_is_known_and_takes_a_lease(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(magics, "lease", lambda **options: asked.append(options))
    shell.run_line_magic("sublet", "lease 2GiB --device gpu0 --cpus 2 --timeout 1.5")
    shell.run_line_magic("sublet", "lease")
    terms = {"memory": "2GiB", "device": "gpu0", "cpus": 2, "name": None, "timeout": 1.5}
    nothing = dict.fromkeys(terms) | {"memory": "auto"}
    assert asked == [terms, nothing]


@pytest.mark.parametrize("line", ["lease 2GiB 3GiB", "lease --nope", "lease --cpus two", "ps 'a"])
def test_what_cannot_be_read_is_said(line: str) -> None:
    with pytest.raises(BadRequest, match="%sublet"):
        magics.magic(line)


def test_status_is_an_object_and_commands_show_what_they_write(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUBLET_HOME", str(sandbox.home))
    monkeypatch.setenv("SUBLET_CPU_MEMORY", sandbox.environ.get("SUBLET_CPU_MEMORY", ""))
    assert isinstance(magics.magic(""), sublet.Snapshot)
    assert magics.magic("ps --nope") is None
    assert "No such option '--nope'" in capsys.readouterr().out
