"""Ready means that calls are answered."""

import pytest

from sublet.channel.codes import Code
from sublet.errors import ServingError
from sublet.serving.catalogue import Catalogue, Model, State, Version


def catalogue(*versions: Version) -> Catalogue:
    models: dict[str, Model] = {}
    for one in versions:
        before = models.get(one.model) or Model(one.model)
        models[one.model] = Model(one.model, {**before.versions, one.number: one})
    return Catalogue(models)


def there(model: str, *engines: str, number: int = 1) -> Version:
    return Version(model, number, State.AVAILABLE, engines=engines)


def test_it_is_ready_when_every_model_has_an_engine_that_answers() -> None:
    assert Catalogue().unready(()) == ""
    assert catalogue(there("a", "x"), there("b", "x", "y")).unready(("y",)) == ""


def test_it_is_not_while_an_engine_is_away_or_silent() -> None:
    assert "does not answer" in catalogue(there("a", "x"), there("b")).unready(())
    assert "does not answer" in catalogue(there("a", "x"), there("b", "y")).unready(("y",))
    assert not there("a").answers(())
    assert not there("a", "x").answers(("x",))
    assert there("a", "x", "y").answers(("x",))


def test_it_is_not_while_a_model_is_on_its_way_that_has_no_other_version() -> None:
    loading = Version("a", 2, State.LOADING)
    assert "not loaded yet" in catalogue(loading).unready(())
    assert catalogue(there("a", "x"), loading).unready(()) == ""


def test_models_that_failed_do_not_count() -> None:
    failed = Version("a", 1, State.END, Code.INTERNAL, "broken")
    assert catalogue(failed, there("b", "x")).unready(()) == ""


def test_a_version_that_nobody_has_looked_into_cannot_be_called_yet() -> None:
    with pytest.raises(ServingError, match="not known yet") as refused:
        there("a", "e").described()
    assert refused.value.code == Code.UNAVAILABLE
