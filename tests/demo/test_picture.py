"""The demo's picture and verdict, of figures that are known."""

import re
from dataclasses import replace
from xml.etree import ElementTree

from demo import picture, sketch, verdict
from demo.install import Progress
from demo.race import Finish, Race, Sample
from sublet.units import GiB, MiB

DONE = Finish("cnn", 0, 10.0, 10.0, "accuracy 1.00", "")
DIED = Finish("lstm", 1, 5.0, 5.0, "", "ResourceExhaustedError")


def made(most: int, *finishes: Finish) -> Race:
    """A race of ten seconds that holds its most from the third second on."""
    samples = (
        Sample(0.0, {"": 100 * MiB}),
        Sample(3.0, {"": 100 * MiB, "cnn": most - 100 * MiB}),
    )
    return Race(finishes, 10.0, most, len(finishes), samples)


BY_HAND = made(5 * GiB, DONE, DIED)
LEASED = made(1536 * MiB, DONE, replace(DIED, code=0))
SHAPE = "{http://www.w3.org/2000/svg}path"
CNN = picture.colour("cnn")
WAYS = {"growth": BY_HAND, verdict.SUBLET: LEASED}


def test_the_drawing_fits_its_width_and_is_ascii() -> None:
    for width in (60, 80):
        lines = [line.plain for line in sketch.draw(WAYS, 2 * GiB, width)]
        assert max(map(len, lines)) <= width
        assert "".join(lines).isascii()


def test_only_what_held_more_than_the_device_is_drawn_above_its_line() -> None:
    lines = [line.plain for line in sketch.draw(WAYS, 2 * GiB, 80)]
    (limit,) = (place for place, line in enumerate(lines) if line.startswith("2.0 GiB +"))
    above = [line.split("|")[1:3] for line in lines[2:limit]]
    assert any("a" in by_hand for by_hand, _ in above)
    assert not any(leased.strip() for _, leased in above)
    bottom = next(line for line in lines if line.lstrip().startswith("0 +"))
    assert [part.count("x") for part in bottom.split("+")[1:3]] == [1, 0]


def test_the_svg_is_one_picture_with_a_panel_for_each_way() -> None:
    text = picture.draw(WAYS, 2 * GiB, "Memory & time")
    root = ElementTree.fromstring(text)
    kinds = [element.get("class") for element in root.iter()]
    assert kinds.count("frame") == 2
    assert kinds.count("limit") == 1
    assert kinds.count("death") == 1
    assert "prefers-color-scheme: dark" in text
    areas = [one.get("d", "") for one in root.iter(SHAPE) if one.get("fill") == CNN]
    highest = [min(map(int, re.findall(r"V(\d+)", area))) for area in areas]
    (limit,) = re.findall(r'class="limit" d="M62 ([\d.]+)H', text)
    assert highest[0] < float(limit) < highest[1]


def test_a_program_that_is_not_counted_is_drawn_all_the_same() -> None:
    left = made(GiB, DONE, DIED).without({"cnn"})
    assert picture.stack(left) == ["", "lstm", "cnn"]
    drawn = [line.plain for line in sketch.draw({verdict.SUBLET: left}, 2 * GiB, 80)]
    assert any("bbb" in line for line in drawn)


def test_the_verdict_is_one_sentence_that_says_what_happened() -> None:
    said = verdict.sentence(WAYS, GiB, 2 * GiB)
    assert said == (
        "Growth killed 1 of 2 programs; with Sublet all 2 finished within 1.5 GiB, in 10.0 s."
    )
    assert verdict.holds(LEASED, GiB, 2 * GiB)
    assert not verdict.holds(LEASED, 3 * GiB, 2 * GiB)
    assert not verdict.holds(BY_HAND, GiB, 6 * GiB)
    assert "but took 5.0 GiB" in verdict.sentence(
        {verdict.SUBLET: made(5 * GiB, DONE)}, GiB, 2 * GiB
    )


def test_a_part_without_a_sample_is_like_the_one_before_and_nothing_is_held_after_the_end() -> None:
    totals = [sum(held.values()) // MiB for held in LEASED.heights(5, 20.0)]
    assert totals == [1536, 1536, 1536, 0, 0]


def test_the_progress_of_an_installation_is_read_from_what_pip_says() -> None:
    progress = Progress()
    progress.hear("Collecting numpy==2.3.4 (from sublet==0.1)")
    progress.hear("Downloading https://host/numpy-2.3.4-cp313-manylinux.whl (16.6 MB)")
    assert str(progress) == "1 packages so far; downloading numpy, 16.6 MB"
    progress.hear("Installing collected packages: numpy, rich")
    assert str(progress) == "unpacking 2 packages: 0 done"
