"""`sublet replay`, as it is typed."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from sublet.cli import main
from sublet.cli.replay import command
from sublet.errors import BadRequest, WorldError

EXCERPT = Path(__file__).parent / "data" / "philly_excerpt.csv"


def typed(*words: str) -> Result:
    return CliRunner().invoke(command, [str(EXCERPT), *words], catch_exceptions=False)


def test_the_tables_fit_a_terminal_and_state_what_was_assumed() -> None:
    told = typed().stdout
    assert max(map(len, told.splitlines())) <= 80
    assert "cluster 103959: 206 jobs on 1 device, load 1.14" in told
    assert "55 jobs for several GPUs left out" in told
    assert "Memory is drawn (seed 1)" in told
    for assumed in ("no contention", "drawn contention", "full contention"):
        assert assumed in told


def test_json_has_everything_for_programs() -> None:
    told = json.loads(
        typed("--json", "--policies", "one,ours", "--contention", "drawn", "--load", "2").stdout
    )
    assert told["load"] == pytest.approx(2.0)
    assert [one["policy"] for one in told["figures"]] == ["one", "ours"]
    assert told["figures"][1]["broken"] == 0


def test_the_plot_is_well_formed_and_shows_every_policy(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    typed("--plot", str(path), "--limit", "100")
    root = ElementTree.parse(path).getroot()
    words = {element.text for element in root.iter() if element.text}
    assert {"one", "slots4", "best", "ours"} <= words
    curves = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len(curves) == 6


def test_all_clusters_can_be_replayed_together_on_several_devices() -> None:
    told = typed("--cluster", "all", "--devices", "2", "--policies", "ours").stdout
    assert "222 jobs on 2 devices" in told
    assert "89 jobs for several GPUs left out" in told
    wide = typed("--cluster", "all", "--nodes", "30", "--devices", "2", "--policies", "ours").stdout
    assert "222 jobs on 30 nodes with 2 devices each" in wide


def test_a_table_of_something_else_is_told_the_columns_and_that_fits_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cars.csv").write_text("name,doors\n2CV,4\n")
    monkeypatch.setattr(sys, "argv", ["sublet", "replay", "cars.csv"])
    assert main() == 2
    told = capsys.readouterr().err
    assert "submit,duration,memory[,gpus,priority]" in told
    assert "timestamp,duration,num_gpus,cluster" in told
    assert max(map(len, told.splitlines())) <= 80


def test_bad_words_are_answered_with_what_to_write(tmp_path: Path) -> None:
    assert "'fifo' is none of one, slots2" in typed("--policies", "fifo").stderr
    assert "cannot both be given" in typed("--load", "1", "--compress", "2").stderr
    with pytest.raises(BadRequest, match="It has: all, 103959, 2869ce"):
        typed("--cluster", "nowhere")
    with pytest.raises(BadRequest, match="unit"):
        typed("--capacity", "16")
    with pytest.raises(BadRequest, match="no load to set"):
        typed("--load", "1", "--limit", "1")
    with pytest.raises(WorldError, match="cannot be written"):
        typed("--limit", "5", "--plot", str(tmp_path / "missing" / "plot.svg"))
