"""`fedsim tune`: search for the best settings; one ε covers the search and its winner.

The search draws a random number of trials, and the settings of each trial from the candidates. It
releases only the trial with the best private score. `fedsim.accounting.search` computes its ε.
All draws follow from a stored secret, as in a run. So a resumed search repeats the same trials bit
for bit, and charges them once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.events import Composition
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.rounding import text_up
from fedsim.config import Config, with_settings
from fedsim.errors import ConfigError, HaltedError
from fedsim.materials import materials_of, new_data_seed
from fedsim.plan import RoundPlan
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.runner.identity import keep_seed, kept_seed
from fedsim.runner.session import write_promise
from fedsim.runner.shared_ledger import shared_account
from fedsim.seeding import stream
from fedsim.state import ServerState
from fedsim.strategy import build_plan, plan_terms
from fedsim.sweep.cells import Cell
from fedsim.sweep.jobs import Job, Outcome, Runner, one_after_another
from fedsim.trackers.tracking import epsilon_terms, find_trackers, tracking
from fedsim.utils.files import write_atomically
from fedsim.utils.json_text import read_json
from fedsim.utils.locks import sole_writer

log = logging.getLogger("fedsim")

STATE, RESULT, WINNER, TRIALS = "search.json", "tune.json", "winner", "trials"
_ERROR = "trial.error.txt"
_NEVER_VARIED = ("data", "privacy", "seed", "training")
_PRICE = ("cost", "unit", "accountant", "relation")  # fields of a plan that determine a trial's ε


@dataclass(frozen=True)
class Search:
    """The plan of a search.

    Attributes:
        cells: the candidates, with `privacy.search` in their configs.
        plans: plans of the candidates, with equal costs.
        seed: seed of the number of trials, their settings and all trials' choices for users.
    """

    cells: Sequence[Cell]
    plans: Sequence[RoundPlan]
    seed: int

    @property
    def plan(self) -> RoundPlan:
        """The plan of the first candidate."""
        return self.plans[0]

    @property
    def release_id(self) -> str:
        """The id of the search in ledgers: a one-way hash of `seed`."""
        kind = self.plan.draws.release_id.partition(":")[0]
        if kind == "seeded":
            return kind
        hashed = hashlib.sha256(f"fedsim/search-id/{self.seed}".encode()).hexdigest()
        return f"{kind}:{hashed[:32]}"

    @property
    def epsilon(self) -> float:
        """ε of the whole search at the configured δ."""
        rounds = self.cells[0].config.strategy.rounds
        return self._spent([(self.plan.cost, rounds)])

    @property
    def epsilon_of_trial(self) -> float:
        """ε of a single run with a trial's noise, and its score, without a search."""
        return self._spent(self.plan.cost.trial)

    def _spent(self, costs: Composition) -> float:
        delta = self.cells[0].config.privacy.delta or 0.0
        plan = self.plan  # account a single trial with the accountant of the search
        chosen = choose([plan.cost], plan.accountant, plan.relation)[0]
        return epsilon_of_composition(costs, delta, chosen.name, plan.relation)

    def sentence(self, *, drawn: bool = False) -> str:
        """Return a sentence on the cost of the search and on the noise of its trials."""
        terms = plan_terms(self.cells[0].config, self.plan, self.epsilon, drawn=drawn)
        return (
            f"A search among {len(self.cells)} candidates. {terms.sentence()} A single run with "
            f"this noise, and its score, would have ε = {text_up(self.epsilon_of_trial, 4)} "
            "under the same terms. The search is worthwhile if the best candidate gains more than "
            "the additional noise costs."
        )


def prepare(cells: Sequence[Cell], trials: float, stopping: str, data_seed: int | None) -> Search:
    """Return the search over the candidates; write nothing.

    Raises:
        ConfigError: fewer than two candidates, settings that change a trial's cost or guarantee, or
            an ε that the search cannot meet.
    """
    if len(cells) < 2:
        raise ConfigError("--vary: there is only one candidate; give at least two values")
    for key in cells[0].keys:
        if key.partition(".")[0] in _NEVER_VARIED:
            raise ConfigError(f"--vary {key}: trials need equal data and guarantees; vary others")
    searched = [_with_search(cell, trials, stopping) for cell in cells]
    config = searched[0].config
    seed = new_data_seed(config) if data_seed is None else data_seed
    plans = [build_plan(cell.config, materials_of(cell.config, seed)) for cell in searched]
    for cell, plan in zip(searched, plans, strict=True):
        if plan.noise_multiplier == 0.0 or plan.cost.search is None:
            raise ConfigError(
                f"strategy.name = {plan.strategy!r}: its runs are not private; take a strategy "
                "with noise, such as uls"
            )
        if any(getattr(plan, part) != getattr(plans[0], part) for part in _PRICE):
            raise ConfigError(
                f"--vary {', '.join(cell.keys)}: {cell.name} has another privacy cost or "
                f"accountant than {searched[0].name}, but all trials of a search need the same; "
                "vary keys that do not change the cost, such as server.learning_rate or "
                "strategy.clip.l2_clip_norm"
            )
    return Search(searched, plans, seed)


def _with_search(cell: Cell, trials: float, stopping: str) -> Cell:
    overrides = [
        f"privacy.search={{trials={trials:g},stopping='{stopping}'}}",
        "training.trackers=[]",  # trackers get only the winner, at the end
    ]
    if cell.config.training.private_evaluation is None:
        overrides.append("training.private_evaluation={}")
    return replace(cell, config=with_settings(cell.config, overrides))


def run_search(
    cells: Sequence[Cell],
    out: Path,
    *,
    trials: float,
    stopping: str = "geometric",
    resume: bool = False,
    runner: Runner = one_after_another,
) -> Path:
    """Do a search and return the winner's run folder.

    Args:
        cells: the candidates: configs that differ in the tuned settings.
        out: folder of the search, absent or empty unless `resume`.
        trials: average number of trials.
        stopping: distribution of the number: see `fedsim.accounting.search.Search`.
        resume: continue the search in `out`.
        runner: function that does the trials.

    Raises:
        ConfigError: see `prepare`; or `out` is in use, or holds another search.
        BudgetSpentError: a shared ledger does not pay for the search; no trial has begun.
        HaltedError: no trial gave a model; the search is charged.
    """
    with sole_writer(out):
        request = {
            "trials": trials,
            "stopping": stopping,
            "candidates": {cell.name: cell.config.to_toml() for cell in cells},
        }
        data_seed = _begun(out, request) if resume else None
        if data_seed is None:
            RunFolder(out).check_fresh(STATE)
        search = prepare(cells, trials, stopping, data_seed)
        log.info("%s", search.sentence())
        winner = RunFolder(out / WINNER)
        if not winner.path.exists():
            _begin(search, out, request)
            _best(search, _jobs(search, out), out, runner).replace(winner.path)
        config, report = winner.read_config(), load_report(winner.path)
        state = ServerState(0, {}, ledger=winner.read_ledger())
        write_promise(winner, config, search.plan, state, report)  # trials have no promise
        _write_result(search, out, config)
        factories = find_trackers(cells[0].config.training.trackers)
        with tracking(factories, winner.path, config, epsilon_terms(search.plan, cells[0].config)):
            pass  # a tracker first sends the existing lines
        shutil.rmtree(out / TRIALS, ignore_errors=True)
        (out / _ERROR).unlink(missing_ok=True)
    return winner.path


def _begun(out: Path, asked: Mapping[str, Any]) -> int | None:
    """Return the secret of the search in `out`; None if a kill came before it was stored."""
    path = out / STATE
    if not path.exists():
        return None
    try:
        state = read_json(path)
        begun, run_id = state["asked"], state["id"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: cannot be read: {error!r}") from None
    if begun != asked:
        raise ConfigError(
            f"--resume: {out} holds another search; give the same config, --vary, --trials and "
            "--stopping, or another --out"
        )
    return kept_seed(run_id, out)


def _begin(search: Search, out: Path, asked: Mapping[str, Any]) -> None:
    """Charge the whole search before its first trial, in its own and in a shared ledger."""
    plan, config = search.plan, search.cells[0].config
    path = out / STATE
    release = search.release_id
    account = shared_account(config.privacy.shared, plan)
    if account is not None:  # repeating this on a resume costs nothing
        account.charge(0, plan.cost, release, [(plan.cost, config.strategy.rounds)])
    if not path.exists():
        state = {"id": keep_seed(search.seed), "asked": asked}
        write_atomically(path, json.dumps(state, indent=1) + "\n")
    ledger = Ledger()
    for round in range(config.strategy.rounds):
        ledger = ledger.charge(round, plan.cost, release)
    RunFolder(out).write_ledger(ledger)


def _jobs(search: Search, out: Path) -> list[Job]:
    """Draw the number of trials and their settings; return their jobs."""
    distribution = search.plan.cost.search
    if distribution is None:
        raise ValueError("search: the plan has no search")
    jobs = []
    for number in range(distribution.draw(stream(search.seed, "tuning", 0))):
        drawn = stream(search.seed, "tuning", 1, number)
        cell = search.cells[int(drawn.integers(len(search.cells)))]
        trial = int(drawn.integers(2**62))
        config = with_settings(cell.config, [f"privacy.search.trial={trial}"])
        folder = out.resolve() / TRIALS / f"{trial:016x}" / WINNER
        jobs.append(Job(f"trial {trial:016x} of {cell.name}", config, folder))
    return jobs


def _best(search: Search, jobs: Sequence[Job], out: Path, runner: Runner) -> Path:
    """Do the trials and return the best trial's folder; delete the models of the others."""
    unfinished, kept_as = [], read_json(out / STATE)["id"]
    for job in jobs:
        run_folder = RunFolder(job.out)
        if not run_folder.identity.exists():
            job.out.mkdir(parents=True, exist_ok=True)
            sources = materials_of(job.config, search.seed).sources
            run_folder.begin(job.config, sources, search.seed, kept_as=kept_as)
        if not run_folder.report.exists():
            unfinished.append(job)
    finished = [Outcome(job.name, "finished") for job in jobs if job not in unfinished]
    folders = {job.name: job.out for job in jobs}
    best: tuple[float, Path] | None = None
    for outcome in chain(finished, runner(unfinished)):
        _check_ended(outcome, out)
        folder = folders[outcome.name]
        scores = load_report(folder).private_scores
        trial = (math.inf if scores is None else scores.loss, folder)
        worse = trial if best is not None and best[0] <= trial[0] else best
        best = best if worse is trial else trial
        if worse is not None:
            for name in ("model", "adapter", "checkpoints"):
                shutil.rmtree(worse[1] / name, ignore_errors=True)
    if best is None or best[0] == math.inf:
        raise HaltedError(
            "the search has no winner: it drew no trial, or all trials diverged; its cost is "
            "charged"
        )
    return best[1]


def _check_ended(outcome: Outcome, out: Path) -> None:
    if outcome.ending == "wrong input":
        raise ConfigError(f"{outcome.name}: {outcome.reason}")
    if not outcome.has_report:
        write_atomically(out / _ERROR, outcome.traceback)
        raise RuntimeError(
            f"{outcome.name}: {outcome.reason} (see {out / _ERROR}); fix it and continue with "
            "--resume"
        )


def _write_result(search: Search, out: Path, config: Config) -> None:
    """Write the winner's settings, its private score (covered by ε), and the candidates."""
    report = load_report(out / WINNER)
    raw = config.model_dump()
    raw["privacy"]["search"]["trial"] = None
    winner = next(cell for cell in search.cells if cell.config.model_dump() == raw)
    result = {
        "statement": report.privacy.promise,
        "epsilon": report.privacy.epsilon,
        "delta": report.privacy.delta,
        "chosen": dict(winner.settings),
        "private_scores": report.private_scores and report.private_scores.model_dump(),
        "candidates": [dict(cell.settings) for cell in search.cells],
        "noise_multiplier": search.plan.noise_multiplier,
        "epsilon_of_a_trial_by_itself": search.epsilon_of_trial,
        "search": search.sentence(drawn=True),
        "winner": WINNER,
    }
    write_atomically(out / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
