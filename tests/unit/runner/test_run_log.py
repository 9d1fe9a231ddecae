"""A run folder's log: whose messages, appended, rotated, and gone when the run is over."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fedsim.evaluation.metrics import NO_SCORES
from fedsim.report.wording import NOT_COVERED
from fedsim.runner.launch import run
from fedsim.runner.log import LOG, LOGGER, run_log
from tests.conftest import Capture, Log, Patch, write_rows
from tests.helpers.light import light_config


def test_our_messages_and_nobody_elses(tmp_path: Path) -> None:
    for _ in range(2):  # the second is of a run that is taken up
        with run_log(tmp_path):
            for name in (
                "fedsim.runner.session",
                "fedsim.clients.engine_choice",
                "transformers",
                "flwr",
                "ray",
            ):
                logging.getLogger(name).warning("said by %s", name)
    logging.getLogger("fedsim").warning("said later")
    text = (tmp_path / LOG).read_text(encoding="utf-8")
    assert text.count("said by ") == 4
    assert text.count(" WARNING fedsim.clients.engine_choice: said by fedsim.clients.") == 2
    assert text.count(" begins\n") == text.count(" ended\n") == 2
    assert not logging.getLogger(LOGGER).handlers


def test_a_full_disk_is_no_error_of_the_run(tmp_path: Path, capsys: Capture) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    (tmp_path / LOG).symlink_to(full)
    with run_log(tmp_path):
        logging.getLogger("fedsim").warning("lost")
    assert "Logging error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({}, ""),
        ({"delta": 0.1}, "for n = 24 users, counted in the private data, which"),
        ({"delta": 0.1, "declared_num_users": 20}, "for n = 20 users, a number declared public."),
        ({"delta": 0.1, "declared_num_users": 9}, ""),
        ({"delta": 0.1, "noise_multiplier": 0.0}, ""),
    ],
)
def test_a_delta_that_promises_nothing_is_warned_of_before_the_run(
    privacy: dict[str, float], said: str, speeches: Path, tmp_path: Path, caplog: Log
) -> None:
    """By the public number of users where there is one; not in the run's folder."""
    strategy = {"rounds": 1, "cohort_size": 6}
    run(light_config(speeches, strategy=strategy, privacy=privacy), tmp_path / "run")
    met = [text for text in caplog.messages if "publishing everything about one user" in text]
    assert len(met) == bool(said)
    assert said in "".join(met)
    assert "publishing" not in (tmp_path / "run" / LOG).read_text(encoding="utf-8")


@pytest.mark.parametrize("wrong", [0, 3])
def test_rows_that_were_dropped_are_said_before_the_run(
    wrong: int, speeches: Path, tmp_path: Path, caplog: Log
) -> None:
    caplog.set_level(logging.INFO, "fedsim")
    light = light_config(speeches, strategy={"rounds": 1, "cohort_size": 6})
    row = json.loads(speeches.read_text(encoding="utf-8").splitlines()[0])
    rows = [{**row, light.data.users_from: None}, *[{**row, light.data.text_column: ""}] * 2]
    own = tmp_path / "own.jsonl"
    added = "".join(json.dumps(each) + "\n" for each in rows[:wrong])
    own.write_text(speeches.read_text(encoding="utf-8") + added, encoding="utf-8")
    config = light.model_copy(update={"data": light.data.model_copy(update={"source": str(own)})})
    run(config, tmp_path / "run")
    line = "Rows of the data that were dropped (not protected by the privacy guarantee): "
    met = [text for text in caplog.messages if text.startswith(line)]
    assert met == [f"{line}empty text: 2, null user: 1"] * bool(wrong)


def test_doubtful_names_and_unread_files_are_said_before_the_run_and_written_nowhere(
    speeches: Path, tmp_path: Path, caplog: Log
) -> None:
    light = light_config(speeches, strategy={"rounds": 1, "cohort_size": 6})
    rows = [json.loads(line) for line in speeches.read_text(encoding="utf-8").splitlines()]
    folder = tmp_path / "data"
    folder.mkdir()
    user = light.data.users_from
    write_rows(folder / "a.jsonl", [*rows, {**rows[0], user: f"{rows[0][user].upper()}\u200b"}])
    (folder / "b.txt").write_text("")
    config = light.model_copy(
        update={"data": light.data.model_copy(update={"source": str(folder)})}
    )
    run(config, tmp_path / "run")
    assert any(text.endswith("files that are not read (1): b.txt") for text in caplog.messages)
    (met,) = [text for text in caplog.messages if "names that differ only in" in text]
    name = rows[0][user]
    assert met.startswith("Look at the data (private): ")
    assert f": 2 names, such as '{name}' = '{name.upper()}'; if two are one person" in met
    for path in (tmp_path / "run").rglob("*.*"):
        assert name.upper().encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("losses", "noise", "at", "cure"),
    [
        ([5, 6, 7, 8, 9, 10, 11], 40.0, 3, "signal over noise is too small to measure in the rel"),
        ([5, 4, 6, 5, 6, 7, 8], 0.0, 6, "try a smaller server.learning_rate"),
        ([5, 6, 7, 7, 8, 9, 9], 0.0, None, ""),
    ],
    ids=["noise", "no noise", "twice in a row"],
)
def test_a_held_out_loss_that_rises_is_warned_of_once(
    losses: list[float],
    noise: float,
    at: int | None,
    cure: str,
    speeches: Path,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    """At the third evaluation in a row; a run that is taken up remembers it."""
    left = iter([*losses, *losses[-1:]])
    monkeypatch.setattr(
        "fedsim.runner.session.evaluate",
        lambda *_: NO_SCORES.model_copy(update={"loss": next(left)}),
    )
    config = light_config(
        speeches,
        strategy={"rounds": 6, "cohort_size": 6},
        privacy={"noise_multiplier": noise},
        training={"evaluate_every": 1, "checkpoint_every": 1, "keep_checkpoints": 9},
    )
    folder = run(config, tmp_path / "run").path
    found = (folder / LOG).read_text(encoding="utf-8")
    words = f"round {at}: held-out loss has risen for three evaluations ({NOT_COVERED}): {cure}"
    assert found.count("has risen") == found.count(words) == (at is not None)
    (folder / "report.json").unlink()
    (folder / "checkpoints" / "round-000006.safetensors").unlink()
    run(config, folder, resume=True)
    again = (folder / LOG).read_text(encoding="utf-8").removeprefix(found)
    assert " ended\n" in again and again.count("has risen") == (at == 6)
