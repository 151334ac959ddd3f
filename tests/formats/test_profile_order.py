"""Orders to record a program: one profiles it at a time, and none outlives whoever gave it."""

import os
from dataclasses import replace
from pathlib import Path

from sublet.formats import profile_order
from sublet.formats.profile_order import ProfileOrder
from sublet.formats.shares import start_time

ME = ProfileOrder(os.getpid(), start_time(os.getpid()) or 0, "/parts", 3, profile="/profile")


def test_one_profiles_a_program_at_a_time_and_any_number_look(tmp_path: Path) -> None:
    place = str(tmp_path)
    assert profile_order.orders(place) == []
    assert profile_order.place(place, ME) is None
    assert profile_order.place(place, ME) == os.getpid()
    beside = replace(ME, profile="")
    assert profile_order.place(place, beside) is None
    assert sorted(profile_order.orders(place), key=lambda one: one.profile) == [beside, ME]
    profile_order.withdraw(place, ME)
    profile_order.withdraw(place, ME)
    assert profile_order.orders(place) == [beside]


def test_the_order_of_a_process_that_is_gone_holds_no_more(tmp_path: Path) -> None:
    place = str(tmp_path)
    assert profile_order.place(place, replace(ME, start=ME.start - 1)) is None
    assert profile_order.orders(place) == []
    assert profile_order.place(place, ME) is None
    assert profile_order.orders(place) == [ME]


def test_what_is_no_order_counts_as_none(tmp_path: Path) -> None:
    directory = tmp_path / profile_order.DIRECTORY
    directory.mkdir()
    for name, text in (("target", "{}"), ("beside-1", "[]"), ("beside-2", '{"bananas": 1}')):
        (directory / name).write_text(text)
    assert profile_order.orders(str(tmp_path)) == []
    assert profile_order.target(str(tmp_path)) is None


def test_an_event_that_is_not_complete_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "3-41"
    path.write_text('["hello",41]\n{}\n[]\n["step","Ma')
    assert profile_order.read_part(str(path)) == [["hello", 41]]
    assert profile_order.read_part(str(tmp_path / "none")) == []
