"""What a server says of its versions."""

from sublet.channel.codes import Code
from sublet.serving.catalogue import Catalogue, Model, State, Version
from sublet.serving.control.news import changes


def catalogue(**states: State) -> Catalogue:
    """Of a model a; a version is called v1, v2 …"""
    versions = {
        int(name[1:]): Version("a", int(name[1:]), state, *_why(state))
        for name, state in states.items()
    }
    return Catalogue({"a": Model("a", versions)})


def _why(state: State) -> tuple[Code, str]:
    return (Code.UNAVAILABLE, "it broke") if state is State.END else (Code.OK, "")


def test_new_versions_and_those_that_left_are_said_once() -> None:
    one = catalogue(v1=State.AVAILABLE)
    loading = catalogue(v1=State.AVAILABLE, v2=State.LOADING)
    both = catalogue(v1=State.AVAILABLE, v2=State.AVAILABLE)
    leaving = catalogue(v1=State.UNLOADING, v2=State.AVAILABLE)
    assert not list(changes(one, loading))
    assert list(changes(loading, both)) == ["a version 2 is served now."]
    assert list(changes(both, leaving)) == ["a version 1 is not served any more."]
    assert not list(changes(leaving, catalogue(v2=State.AVAILABLE)))
    assert list(changes(one, Catalogue())) == ["a version 1 is not served any more."]


def test_a_version_that_failed_has_said_so_itself() -> None:
    assert not list(changes(catalogue(v1=State.AVAILABLE), catalogue(v1=State.END)))
