"""A ledger as a later broker finds it."""

from sublet.broker.ledger import Ledger

_opened: list[Ledger] = []


def reopened(ledger: Ledger) -> Ledger:
    """The same file, opened anew; closed at the end of the test, if it was not before."""
    ledger.close()
    _opened.append(Ledger.open(ledger.path))
    return _opened[-1]


def close_all() -> None:
    """At the end of a test."""
    while _opened:
        _opened.pop().close()
