"""`fedsim evaluate` on a run of its own, with users held out and personalisation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from fedsim.config import load_config
from fedsim.materials import load_materials
from fedsim.report.schema import load_report
from fedsim.runner.launch import run
from tests.conftest import small_config
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok
from tests.helpers.light import light_config


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    config = small_config(speeches, data={"held_out_users": 0.3})
    return run(config, folder / "run").path


@pytest.fixture(scope="module")
def found(finished: Path) -> dict[str, Any]:
    printed = fedsim_json("evaluate", finished, "--personalise", "2")
    assert printed == json.loads((finished / "evaluation.json").read_text(encoding="utf-8"))
    return printed


def test_it_scores_what_the_report_scored(finished: Path, found: dict[str, Any]) -> None:
    utility = load_report(finished).utility
    for stage, expected in (("initial", utility.initial), ("final", utility.final)):
        scores = found["stages"][stage]["held_out_examples"]
        for name in ("loss", "accuracy_top1", "user_loss", "user_accuracy_top1"):
            assert scores[name] == pytest.approx(getattr(expected, name), rel=1e-9), name
        assert (scores["tokens"], scores["users"]) == (expected.tokens, expected.users)


def test_head_words_are_counted_as_a_plain_loop_does(finished: Path, found: dict[str, Any]) -> None:
    config = load_config(finished / "config.toml")
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    store, split = materials.store, materials.split
    network = AutoModelForCausalLM.from_pretrained(finished / "model")
    words: dict[int, int] = {}
    for example in split.train_examples.tolist():
        for token in store.example(example)[1:].tolist():
            words[token] = words.get(token, 0) + 1
    frequent = sorted(range(network.config.vocab_size), key=lambda t: (-words.get(t, 0), t))
    expected = {head: [0] * 11 for head in (10, 50, 100)}
    for example in split.held_out_examples.tolist():
        ids = torch.from_numpy(np.array(store.example(example), dtype=np.int64))
        with torch.no_grad():
            likeliest = network(input_ids=ids[None]).logits[0, :-1].topk(10).indices
        for row in likeliest.tolist():
            for head, counts in expected.items():
                counts[len(set(row) & set(frequent[:head]))] += 1
    measured = found["stages"]["final"]["head_words"]
    for head, counts in expected.items():
        apart = np.abs(np.array(measured[str(head)]) - counts).sum()
        assert apart <= 0.01 * sum(counts)  # a tie in the last place may go either way
        assert sum(measured[str(head)]) == sum(counts)


def test_samples_are_the_models_own_and_in_the_report(
    finished: Path, found: dict[str, Any]
) -> None:
    samples = load_report(finished).samples
    assert samples is not None and list(samples.initial) == found["stages"]["initial"]["samples"]
    assert len(samples.final) == 3
    assert samples.final != samples.initial
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "Generated texts" in page


def test_every_held_out_user_is_personalised_or_counted(
    finished: Path, found: dict[str, Any]
) -> None:
    config = load_config(finished / "config.toml")
    split = load_materials(config.seed, config.data, config.model, "cpu").split
    personalised = found["personalisation"]
    total = personalised["users"] + personalised["users_left_out"]
    assert total == len(split.held_out_users) > 0
    for stage in ("initial", "final"):
        without, own = (personalised[stage][part] for part in ("without", "personalised"))
        assert without["loss"] > 0.0
        assert own["loss"] != without["loss"]


def test_other_texts_than_the_runs_are_refused(speeches: Path, tmp_path: Path) -> None:
    """Users who came later would be called trained on; what was held out would be another."""
    path = Path(shutil.copy(speeches, tmp_path / "mine.jsonl"))
    config = light_config(path, data={"held_out_users": 0.3}, strategy={"rounds": 1})
    out = run(config, tmp_path / "run").path
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"author": "new", "body": "the king shall ride"}) + "\n")
    for command in ("evaluate", "attack"):
        done = fedsim(command, out)
        assert done.returncode == 2
        assert f"data.source changed since the run in {out} began" in done.complaint


def test_samples_are_covered_where_there_is_a_guarantee(speeches: Path, tmp_path: Path) -> None:
    """But not of a start that was trained before: what it writes may be of unprotected text."""

    def said(name: str, **sections: dict[str, Any]) -> str:
        strategy = {"rounds": 1, **sections.pop("strategy", {})}
        run(light_config(speeches, strategy=strategy, **sections), tmp_path / name)
        return fedsim_ok("evaluate", tmp_path / name).stdout.rstrip()

    neither = "not protected by the privacy guarantee; nor are the samples."
    assert said("private").endswith("by the privacy guarantee, except for the samples.")
    assert said("free", strategy={"name": "non-private"}).endswith(neither)
    start = {"name_or_path": str(tmp_path / "free" / "model"), "pretraining_steps": None}
    assert said("started", model=start).endswith(neither)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--personalise", "1", "--batch-size", "9" * 20), "'--batch-size': 99999999999999999999"),
        (("--out", "FOLDER"), "'--out': File '"),
    ],
)
def test_options_that_lead_nowhere_are_refused(
    options: tuple[str, ...], complaint: str, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").touch()
    given = [option.replace("FOLDER", str(tmp_path)) for option in options]
    done = fedsim("evaluate", finished, *given)
    assert done.returncode == 2
    assert complaint in done.complaint


def test_without_held_out_users_there_is_nobody_to_personalise_for(
    speeches: Path, tmp_path: Path
) -> None:
    done = run(light_config(speeches, strategy={"rounds": 1}), tmp_path / "run")
    complaint = fedsim("evaluate", done.path, "--personalise", "1").complaint
    assert "the run has no held-out users to personalise for" in complaint


def test_start_and_end_are_personalised_by_the_same_parameters(
    speeches: Path, tmp_path: Path
) -> None:
    """Where nothing was learnt, neither gains more, whichever parameters the run trained."""
    config = light_config(
        speeches,
        data={"held_out_users": 0.3},
        model={"trainable": "ln_"},
        strategy={"rounds": 1},
        server={"learning_rate": 1e-5},
    )
    done = run(config, tmp_path / "run")
    found = fedsim_json("evaluate", done.path, "--personalise", "2")["personalisation"]
    first, last = found["initial"], found["final"]
    assert first["parameters_moved"] == last["parameters_moved"]
    assert first["personalised"]["loss"] < first["without"]["loss"] - 1e-4
    assert last["personalised"]["loss"] == pytest.approx(first["personalised"]["loss"], rel=1e-5)
    wild = fedsim_json("evaluate", done.path, "--personalise", "1", "--learning-rate", "1e30")
    assert wild["personalisation"]["final"]["users_diverged"] > 0
