"""The commands as a user types them; in a process of its own what is killed or installed."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from scipy.stats import binom
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedsim.accounting.ledger import Ledger
from fedsim.config import load_config
from fedsim.materials import load_materials
from fedsim.plan import RoundPlan
from fedsim.report.schema import load_metrics, load_report
from fedsim.runner.folder import RunFolder
from fedsim.server_optimizer import ServerOptimizer
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a stranger's JSONL, done through the command line."""
    folder = tmp_path_factory.mktemp("runs")
    config = write_config(folder / "mine.toml", speeches)
    done = fedsim_ok("run", config, "--out", folder / "run")
    assert "(ε = " in done.stdout
    return folder / "run"


def test_the_run_folder_has_what_the_contract_names(finished: Path) -> None:
    names = {"config.toml", "metrics.jsonl", "ledger.json", "checkpoints", "model", "report.json"}
    assert names | {"report.html"} <= {path.name for path in finished.iterdir()}
    report = json.loads((finished / "report.json").read_text(encoding="utf-8"))
    privacy = {"unit", "relation", "epsilon", "delta", "noise_multiplier", "sampling_probability"}
    privacy |= {"sampler", "rounds", "clip", "estimator", "noise_stddev", "accountant", "noise"}
    assert privacy | {"assumptions"} <= report["privacy"].keys()
    for moment in ("initial", "final"):
        assert {"loss", "perplexity", "accuracy_top1"} <= report["utility"][moment].keys()
    assert {"users", "examples", "tokens", "dropped"} <= report["data"].keys()
    assert {"gradients", "seconds", "peak_memory_bytes"} <= report["cost"].keys()


def test_its_version_and_a_run_that_is_not_there_yet(speeches: Path, tmp_path: Path) -> None:
    assert fedsim("--version").stdout == f"{version('fedsim-dp')}\n"
    config = write_config(tmp_path / "new.toml", speeches)
    done = fedsim_ok("run", config, "--resume", "--out", tmp_path / "mistyped")
    assert done.stderr.count(f"--resume: there is no run in {tmp_path / 'mistyped'} yet; a") == 1
    assert "--resume" not in fedsim("run", config, "--out", tmp_path / "new").stderr


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handlers: who runs tests may ignore the signals."""
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    for each in (signal.SIGTERM, signal.SIGHUP):
        before[each] = signal.signal(each, signal.SIG_DFL)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("sent", "times", "kept"),
    [("SIGINT", 1, 3), ("SIGINT", 2, 2), ("SIGTERM", 2, 3), ("SIGHUP", 1, 3)],
)
@pytest.mark.parametrize("at", ["earlier_noise", "advance", "write_ledger"])
def test_an_interrupted_run_says_how_to_go_on_and_loses_no_round(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    sent: str,
    times: int,
    kept: int,
) -> None:
    """By a signal in the third round, its release being drawn; a second Ctrl-C stops at once.

    With secure noise a lost round is paid for twice, and the budget ends before the last.
    """
    config = write_config(
        tmp_path / "c.toml",
        speeches,
        strategy={"rounds": 4},
        privacy={"noise": "secure", "epsilon": 8.0, "noise_multiplier": None, "delta": 1e-4},
    )
    homes = {"earlier_noise": RoundPlan, "advance": ServerOptimizer, "write_ledger": RunFolder}
    original, calls = getattr(homes[at], at), iter(range(9))

    def interrupted(*args: Any, **named: Any) -> Any:  # noqa: ANN401  (as of each)
        result = original(*args, **named)
        if next(calls) == 2:
            for _ in range(times):
                signal.raise_signal(signal.Signals[sent])
        return result

    monkeypatch.setattr(homes[at], at, interrupted)
    done = fedsim("run", config, "--out", tmp_path / "run")
    assert (done.returncode, done.stdout) == (130, "")
    name = "Ctrl-C" if sent == "SIGINT" else sent
    assert f"{name}: stops once this round is saved; Ctrl-C stops at once" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Stopped; to continue the run, give the same config and --set, --resume")
    assert last.endswith(f" --out {tmp_path / 'run'}")
    monkeypatch.undo()
    kept = 3 if at == "write_ledger" else kept  # then the round is done
    assert load_metrics(tmp_path / "run")[-1].round == kept
    resumed = fedsim("run", config, "--out", tmp_path / "run", "--resume")
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.parametrize(
    ("rate", "sections", "why"),
    [
        (
            30.0,
            {"privacy": {"noise_multiplier": 40.0}},
            ": signal over noise is too small to measure in the releases. A larger cohort, a",
        ),
        (3000.0, {"strategy": {"name": "non-private"}}, ": try a smaller server.learning_rate"),
    ],
    ids=["noise", "plain"],
)
def test_a_run_that_ends_worse_than_it_began_says_why(
    speeches: Path, tmp_path: Path, rate: float, sections: dict[str, Any], why: str
) -> None:
    """Noise over signal, by public norms; without noise the step is too long."""
    server, out = {"optimizer": "sgd", "learning_rate": rate}, tmp_path / "out"
    config = write_config(tmp_path / "c.toml", speeches, server=server, **sections)
    done = fedsim_ok("run", config, "--out", out)
    assert done.stderr.count("the run ends worse than it began, by its held-out loss (comput") == 1
    assert why in done.stderr and why in done_log(out)
    assert "nats per token, worse than it began (computed on private text" in done.stdout


def done_log(out: Path) -> str:
    return (out / "run.log").read_text(encoding="utf-8")


def test_a_run_that_ends_better_says_nothing_of_it(finished: Path) -> None:
    utility = load_report(finished).utility
    worse = utility.final.loss > utility.initial.loss
    assert ("worse than it began" in done_log(finished)) == worse


def test_the_resolved_config_runs_again_to_the_same_bits(finished: Path, tmp_path: Path) -> None:
    fedsim_ok("run", finished / "config.toml", "--out", tmp_path / "again")
    assert_same_run(finished, tmp_path / "again")


def test_the_saved_model_reproduces_the_reported_loss(finished: Path) -> None:
    """With transformers alone: no logits, no loss, no evaluation of fedsim's."""
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    config = load_config(finished / "config.toml")
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    losses, count = 0.0, 0
    for example in materials.split.held_out_examples:
        ids = torch.from_numpy(np.array(materials.store.example(int(example)), dtype=np.int64))
        assert int(ids.max()) < len(tokenizer)
        with torch.no_grad():
            loss = model(input_ids=ids[None], labels=ids[None]).loss
        losses, count = losses + float(loss) * (len(ids) - 1), count + len(ids) - 1
    final = load_report(finished).utility.final
    assert final.tokens == count
    assert losses / count == pytest.approx(final.loss, abs=1e-4)


def assert_same_run(left: Path, right: Path) -> None:
    """Final parameters, metrics and ledger, bit by bit."""
    for name in ("metrics.jsonl", "ledger.json", "checkpoints/round-000004.safetensors"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    assert (left / "model/model.safetensors").read_bytes() == (
        right / "model/model.safetensors"
    ).read_bytes()


def test_the_reported_epsilon_is_the_ledgers(finished: Path) -> None:
    privacy = load_report(finished).privacy
    ledger = Ledger.from_json(json.loads((finished / "ledger.json").read_text(encoding="utf-8")))
    assert ledger.num_releases == privacy.rounds == 4
    assert privacy.delta is not None
    assert ledger.epsilon(privacy.delta, privacy.accountant) == privacy.epsilon
    metrics = load_metrics(finished)
    assert [line.round for line in metrics] == [0, 1, 2, 3, 4]
    assert metrics[-1].epsilon == pytest.approx(privacy.epsilon, rel=1e-9)


def test_the_reported_epsilon_is_dp_accountings(finished: Path) -> None:
    """From the report's own fields, with dp_accounting alone."""
    privacy = load_report(finished).privacy
    assert None not in (privacy.sampling_probability, privacy.noise_multiplier, privacy.delta)
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            privacy.sampling_probability, dp_accounting.GaussianDpEvent(privacy.noise_multiplier)
        ),
        privacy.rounds,
    )
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(event)
    assert_just_above(privacy.epsilon, accountant.get_epsilon(privacy.delta))


def assert_mixture_epsilon(run: Path) -> None:
    """The same for example-level sampling (Charles et al. 2024, App. B.1)."""
    privacy = load_report(run).privacy
    units, probability = privacy.units_per_user, privacy.sampling_probability
    assert probability is not None
    counts = range(units + 1)
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        privacy.noise_multiplier, list(counts), [binom.pmf(k, units, probability) for k in counts]
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, privacy.rounds))
    assert_just_above(privacy.epsilon, accountant.get_epsilon(privacy.delta))


def assert_just_above(printed: float | None, reference: float) -> None:
    assert printed is not None and reference * (1 - 1e-4) <= printed <= reference * (1 + 1e-3)


def test_compare_runs_configs_and_reads_folders(
    finished: Path, speeches: Path, tmp_path: Path
) -> None:
    els = write_config(
        tmp_path / "els.toml",
        speeches,
        strategy={"name": "els", "cohort_size": None, "batch_size": 12.0},
    )
    out = tmp_path / "both"
    done = fedsim_ok("compare", finished, els, "--out", out)
    assert " start " in done.stdout
    assert "els: begins (1 of 1)" in done.stderr
    assert {"comparison.html", "comparison.png", "comparison.csv", "els"} <= {
        path.name for path in out.iterdir()
    }
    before = (out / "els" / "report.json").read_bytes()
    fedsim_ok("compare", finished, els, "--out", out)
    assert_mixture_epsilon(out / "els")
    assert (out / "els" / "report.json").read_bytes() == before  # not run a second time


def test_training_that_went_nowhere_is_said_in_one_line(speeches: Path, tmp_path: Path) -> None:
    """Of adapters that begin with zeros in B, A alone moves nothing."""
    model = {"lora_rank": 2, "trainable": "lora_A"}
    config = write_config(tmp_path / "c.toml", speeches, model=model, strategy={"rounds": 1})
    done = fedsim("run", config, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert (
        "\nError: the parameters changed in training, but no log-likelihood changed" in done.stderr
    )
    assert not (tmp_path / "run" / "report.json").exists()


def test_the_budget_stops_a_run_that_lost_secure_rounds(speeches: Path, tmp_path: Path) -> None:
    """Secure noise is fresh when a round is done again, so the rounds that were lost stay paid."""
    config = write_config(
        tmp_path / "secure.toml",
        speeches,
        privacy={"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-2, "noise": "secure"},
        training={"checkpoint_every": 2},
    )
    out = tmp_path / "run"
    fedsim_ok("run", config, "--out", out)
    (out / "checkpoints" / "round-000004.safetensors").unlink()
    shutil.rmtree(out / "model")  # as a kill before its last round leaves it
    stopped = fedsim("run", config, "--out", out, "--resume")
    assert stopped.returncode == 3, stopped.stderr
    assert "budget" in stopped.stderr
    report = load_report(out)
    assert report.privacy.epsilon is not None and report.privacy.epsilon <= 3.0
    assert (report.privacy.rounds, report.cost.rounds, report.cost.planned_rounds) == (4, 2, 4)
