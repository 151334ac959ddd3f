"""What the command line and the files mean."""

import os
from pathlib import Path

import pytest

from sublet.errors import BadRequest, ServingError
from sublet.serving.control.config import (
    PER_MODEL,
    Settings,
    decoded,
    models,
    options,
    reload_roots,
    strangers,
)
from sublet.serving.control.config_files import ModelConfig
from sublet.serving.frontend.proto import serving


def version(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"graph")
    return path


def names(settings: Settings) -> dict[str, str]:
    return {one.name: one.base_path for one in models(settings)}


def test_a_path_is_a_directory_of_models_or_one_model(tmp_path: Path) -> None:
    version(tmp_path / "a" / "1")
    version(tmp_path / "b" / "7")
    assert sorted(names(Settings(path=str(tmp_path)))) == ["a", "b"]
    assert names(Settings(path=str(tmp_path / "a"))) == {"a": str(tmp_path / "a")}
    assert names(Settings(path=str(tmp_path / "b" / "7"))) == {"b": str(tmp_path / "b" / "7")}
    assert list(names(Settings(path=str(tmp_path / "a"), model_name="other"))) == ["other"]


@pytest.mark.parametrize("name", ["gone", "empty"])
def test_a_path_without_a_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequest, match=f"{name}: there is no"):
        models(Settings(path=str(tmp_path / name)))


def test_paths_of_a_config_file_begin_where_it_lies(tmp_path: Path) -> None:
    version(tmp_path / "a" / "1")
    file = tmp_path / "models.config"
    file.write_text('model_config_list { config { name: "a" base_path: "a" } }')
    assert names(Settings(model_config_file=str(file))) == {"a": str(tmp_path / "a")}
    # One that is not there may come later.
    file.write_text('model_config_list { config { name: "a" base_path: "b" } }')
    assert names(Settings(model_config_file=str(file))) == {"a": str(tmp_path / "b")}


def test_a_config_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="No such file"):
        models(Settings(model_config_file=str(tmp_path / "gone")))


def test_a_client_must_name_whole_paths() -> None:
    config = serving("ModelServerConfig")()
    config.model_config_list.config.add(name="a", base_path="a", model_platform="tensorflow")
    with pytest.raises(BadRequest, match="Expected model a to have an absolute path or URI"):
        decoded(Settings(), config.SerializeToString(), ("/",))


def test_a_client_can_name_what_is_below_the_roots_and_learns_nothing_of_what_is_not(
    tmp_path: Path,
) -> None:
    inside, outside = tmp_path / "in" / "a", tmp_path / "out" / "b"
    version(inside / "1")
    version(outside / "1")
    (tmp_path / "in" / "link").symlink_to(outside)
    roots = reload_roots(Settings(), [ModelConfig("a", str(inside))])
    assert roots == (os.path.realpath(tmp_path / "in"),)

    def named(path: Path | str) -> str:
        config = serving("ModelServerConfig")()
        config.model_config_list.config.add(name="m", base_path=str(path))
        (found,) = decoded(Settings(), config.SerializeToString(), roots)
        return found.base_path

    assert named(inside) == str(inside)
    answer = set()
    for path in (
        outside,
        tmp_path / "out" / "nothing",
        tmp_path / "in" / "link",
        f"{inside}/../../out/b",
        f"file://{outside}",
        "/",
    ):
        with pytest.raises(BadRequest, match="is not below a directory") as wrong:
            named(path)
        answer.add(str(wrong.value).replace(str(path), "PATH"))
    assert len(answer) == 1
    with pytest.raises(BadRequest, match="Could not find base path"):
        named(tmp_path / "in" / "nothing")


def test_the_whole_disk_is_a_root_only_for_who_says_so() -> None:
    models = [ModelConfig("a", "/model")]
    assert reload_roots(Settings(), models) == ()
    assert reload_roots(Settings(reload_roots=("/",)), models) == ("/",)


def test_a_version_that_is_a_link_out_of_its_model_is_not_served_unless_it_may(
    tmp_path: Path,
) -> None:
    version(tmp_path / "elsewhere" / "1")
    version(tmp_path / "a" / "1")
    (tmp_path / "a" / "2").symlink_to(tmp_path / "elsewhere" / "1")
    (tmp_path / "a" / "3").symlink_to("1")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for model in ("a", "b"):  # Where a model lies is the owner's word, link or not.
        config = ModelConfig(model, str(tmp_path / model))
        for number in ("1", "3"):
            options(Settings(), config, str(tmp_path / model / number))
        with pytest.raises(ServingError, match="leads out of the model's directory"):
            options(Settings(), config, str(tmp_path / model / "2"))
        options(Settings(follow_links=True), config, str(tmp_path / model / "2"))


def test_the_command_line_pins_and_isolates_by_name(tmp_path: Path) -> None:
    for name in "abc":
        version(tmp_path / name / "1")
    settings = Settings(path=str(tmp_path), pin=frozenset("a"), isolate={"b": None})
    found = {one.name: (one.pin, one.isolate) for one in models(settings)}
    assert found == {"a": (True, False), "b": (False, True), "c": (False, False)}


def test_a_model_may_have_another_time_for_loading_than_the_others(tmp_path: Path) -> None:
    version(tmp_path / "a")
    file = tmp_path / "models.config"

    def timeout(sharing: str, settings: Settings) -> object:
        file.write_text(
            f'model_config_list {{ config {{ name: "a" base_path: "a" sharing {{ {sharing} }} }} }}'
        )
        (model,) = models(settings)
        return options(settings, model, model.base_path).get("load_timeout")

    answer = Settings(model_config_file=str(file), load_timeout=30.0)
    assert timeout("", Settings(model_config_file=str(file))) is None
    assert timeout("", answer) == 30.0
    assert timeout("load_timeout_seconds: 600", answer) == 600.0
    with pytest.raises(BadRequest, match="load_timeout_seconds"):
        timeout("load_timeout_seconds: -1", answer)


def test_flags_about_models_that_are_not_there_are_told(tmp_path: Path) -> None:
    version(tmp_path / "a" / "1")
    settings = Settings(path=str(tmp_path), pin=frozenset(("a", "x")), isolate={"y": None})
    assert strangers(settings, models(settings)) == [("--pin", "x"), ("--isolate", "y")]


def test_a_version_brings_its_own_batching_parameters_if_they_are_wanted(tmp_path: Path) -> None:
    place = version(tmp_path / "1")
    (place / PER_MODEL).write_text("max_batch_size { value: 4 }")
    common = {"max_batch_size": 32, "batch_timeout_micros": 500, "num_batch_threads": 2}
    model = ModelConfig("a", str(tmp_path))
    assert options(Settings(batching=common), model, str(place))["max_batch_size"] == 32
    answer = options(Settings(batching=common, per_model_batching=True), model, str(place))
    assert answer["max_batch_size"] == 4
    assert "num_batch_threads" not in answer
    assert "batch_timeout_micros" not in answer
