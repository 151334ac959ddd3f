"""Ports that are held until a program listens on them."""

import socket

import pytest

from sublet.keeper import held_port


def test_a_held_port_is_given_to_nobody_who_asks_for_any_port() -> None:
    """Nor to who wants it for himself; who shares it as servers do may listen there."""
    with held_port.hold() as held:
        port = held_port.number(held)
        others = [socket.socket() for _ in range(500)]
        for other in others:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("", 0))
        assert port not in {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
        with socket.socket() as alone, pytest.raises(OSError, match="in use"):
            alone.bind(("127.0.0.1", port))
        with (
            socket.create_server(("127.0.0.1", port)),
            socket.create_connection(("127.0.0.1", port)),
        ):
            pass


def test_several_hold_one_port_until_the_last_lets_it_go() -> None:
    first = held_port.hold()
    port = held_port.number(first)
    second = held_port.hold(port)
    first.close()
    with socket.socket() as alone, pytest.raises(OSError, match="in use"):
        alone.bind(("", port))
    second.close()
    with socket.socket() as alone:
        alone.bind(("", port))


def test_a_port_on_which_somebody_listens_cannot_be_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        held_port.hold(server.getsockname()[1])
