"""Codes open one session each, soon; everything else opens none."""

import pytest

from sublet.page.access import CODE_LASTS, Access


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


def test_a_code_opens_one_session_once() -> None:
    access = Access()
    code = access.new_code()
    session = access.redeem(code)
    assert session is not None
    assert access.has_session(session)
    assert access.redeem(code) is None
    assert not access.has_session(code)


def test_a_code_that_is_too_old_opens_nothing() -> None:
    clock = Clock()
    access = Access(clock.now)
    code = access.new_code()
    clock.at += CODE_LASTS
    assert access.redeem(code) is None


@pytest.mark.parametrize("given", ["", "x", "ü" * 40, "\ud800", "a" * 1_000_000])
def test_what_is_no_secret_of_this_server_opens_nothing(given: str) -> None:
    access, other = Access(), Access()
    access.redeem(access.new_code())
    for one in (given, other.token, other.new_code(), access.base):
        assert not access.has_token(one)
        assert not access.has_session(one)
        assert access.redeem(one) is None


def test_what_is_kept_is_bounded_and_the_latest_stay() -> None:
    access = Access()
    codes = [access.new_code() for _ in range(1000)]
    assert access.redeem(codes[0]) is None
    assert access.redeem(codes[-1]) is not None
    sessions = [access.redeem(access.new_code()) or "" for _ in range(1000)]
    assert not access.has_session(sessions[0])
    assert access.has_session(sessions[-1])


def test_the_token_is_neither_a_code_nor_a_session() -> None:
    access = Access()
    assert access.has_token(access.token)
    assert not access.has_session(access.token)
    assert access.redeem(access.token) is None
