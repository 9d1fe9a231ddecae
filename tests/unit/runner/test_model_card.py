"""The card beside a model: the hub's metadata, code that loads it, nothing that breaks either."""

from __future__ import annotations

import re
import tomllib
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

import fedsim
from fedsim.config import Config, ModelConfig, parse_config
from fedsim.materials import load_model
from fedsim.runner.model_card import model_card
from fedsim.utils.terminal import quietly
from tests.conftest import Patch
from tests.helpers.light import EVERY_SERVER_OPTION, light_config

IDS = torch.tensor([[3, 4, 5, 6]])


def block(text: str, language: str) -> str:
    found = re.findall(f"```{language}\n(.*?)```", text, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def head_of(card: ModelCard) -> dict[str, Any]:
    found: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return found


def loaded(card: ModelCard, folder: Path, base: tuple[str, Path] | None = None) -> Any:  # noqa: ANN401
    """Carry out the code of a card in its folder and return the model, in evaluation."""
    code = block(card.text, "python")
    if base is not None:
        assert f'from_pretrained("{base[0]}")' in code
        code = code.replace(f'"{base[0]}"', repr(str(base[1])))
    scope: dict[str, Any] = {}
    with chdir(folder), quietly():
        exec(code, scope)  # noqa: S102  (what a reader of the card does)
    assert scope["tokenizer"].vocab_size > 0
    return scope["model"].eval()


def test_a_card_has_the_hubs_keys_the_settings_and_code_that_loads_it(
    speeches: Path, tmp_path: Path
) -> None:
    network = Path(light_config(speeches).model.name_or_path)
    base = tmp_path / "base"
    base.symlink_to(network)
    config = light_config(
        speeches,
        model={"name_or_path": str(base), "lora_rank": 2, "trainable": "all"},
        server={**EVERY_SERVER_OPTION, "learning_rate": 0.25},
    )
    run = fedsim.run(config, tmp_path / "run")
    assert run.adapter is not None
    expected = run.model.eval()(IDS).logits
    for folder, library in ((run.path / "model", "transformers"), (run.adapter, "peft")):
        card = ModelCard.load(folder / "README.md")
        assert head_of(card) == {
            "library_name": library,
            "license": "unknown",
            "pipeline_tag": "text-generation",
            "tags": ["fedsim"],  # a seeded run protects nobody
        }
        assert (
            "This run gives no protection: with secret noise ε would cover only the model."
            in card.text
        )
        assert (
            "of the users in a data set that is not on the hub: all rows with one value"
            in card.text
        )
        settings = tomllib.loads(block(card.text, "toml"))
        assert settings["server"]["learning_rate"] == 0.25
        assert settings["server"]["schedule"] == {**EVERY_SERVER_OPTION["schedule"]}
        assert settings["strategy"]["rounds"] == config.strategy.rounds
        assert settings["model"]["lora_rank"] == 2
        assert str(tmp_path) not in card.content
        start = (base.resolve().name, network) if library == "peft" else None
        assert torch.allclose(loaded(card, folder, start)(IDS).logits, expected, atol=1e-5)


def test_the_code_of_a_built_in_model_asks_fedsim(tmp_path: Path) -> None:
    options = {"pretraining_steps": 0, "lora_rank": 2}
    start = load_model(ModelConfig(**options), sequence_length=24)  # type: ignore[arg-type]
    start.save_adapter(start.initial_parameters(), tmp_path)  # type: ignore[attr-defined]
    card = written(parse_config({"model": options}), tmp_path)
    assert head_of(card)["library_name"] == "fedsim"
    assert (
        "the users in the plays of Shakespeare: all rows with one value of `speaker`" in card.text
    )
    with torch.no_grad():
        assert loaded(card, tmp_path)(IDS).logits.shape == (1, 4, 2000)


def written(config: Config, folder: Path, *assumptions: str) -> ModelCard:
    """Write and read the card of an adapter with a secure promise."""
    promise = {
        **{"statement": "Every user has …", "assumptions": assumptions, "software": "fedsim-dp 1"},
        **{"noise": "secure", "hypothetical": False, "trade_off": None, "unit": "user"},
    }
    path = folder / "README.md"
    path.write_text(model_card(config, folder, promise, adapter=True), encoding="utf-8")
    card: ModelCard = ModelCard.load(path)
    return card


@pytest.mark.parametrize(
    ("head", "licence"),
    [
        ("---\nlicense: apache-2.0\n---\n", ("apache-2.0", None, None)),
        (
            "---\nlicense: other\nlicense_name: own\nlicense_link: https://x.org/l\n---\n",
            ("other", "own", "https://x.org/l"),
        ),
        ("---\nlicense: other\nlicense_link: LICENSE\n---\n", ("other", None, None)),
        (
            '---\nlicense: "a: b`\\n---\\n# Free\\n"\n---\n',
            ("a: b`\n---\n# Free\n", None, None),
        ),
        ("---\nlicense: [\n---\n", ("unknown", None, None)),
        ("---\n- mit\n---\n", ("unknown", None, None)),
        ("# no head\n", ("unknown", None, None)),
        (None, ("unknown", None, None)),
    ],
)
def test_a_base_of_the_hub_is_named_with_its_licence_and_breaks_nothing(
    head: str | None, licence: tuple[str | None, ...], tmp_path: Path, monkeypatch: Patch
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    if head is not None:
        (base / "README.md").write_text(head, encoding="utf-8")
    found = None if head is None else base
    monkeypatch.setattr("fedsim.runner.model_card.hub_folder", lambda *_: found)
    config = parse_config({"model": {"name_or_path": "o/base"}, "data": {"source": "o/text"}})
    quoted = "'o/base' has a promise:\n\n## Free\n---\n![x](http://x.org) <script>x</script>"
    card = written(config, tmp_path, quoted)
    names = ("license", "license_name", "license_link")
    assert head_of(card) == {
        "base_model": "o/base",
        "base_model_relation": "adapter",
        "datasets": ["o/text"],
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["fedsim", "differential-privacy", "user-level-privacy"],
        **{name: value for name, value in zip(names, licence, strict=True) if value},
    }
    owned = parse_config({"strategy": {"name": "els"}, "data": {"owners_column": "who"}})
    assert "`who` names the owners of each text." in written(owned, tmp_path).text
    assert 'from_pretrained("o/base")' in block(card.text, "python")
    assert "the users in `o/text` on the Hugging Face hub: all rows" in card.text
    headings = re.findall(r"^#.*", card.text.replace(block(card.text, "toml"), ""), re.MULTILINE)
    assert headings[:3] == [
        "# A language adapter trained by fedsim",
        "## Privacy",
        "## How to load it",
    ]
    assert not any("Free" in heading for heading in headings)
    assert "!\\[x](http" in card.text
    assert "\\<script>" in card.text
