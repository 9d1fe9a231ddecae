"""One run, from config to report: read `execute`, then `_Session` from top to bottom."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from flwr.serverapp import Grid

from fedsim.accounting.budget import Budget
from fedsim.accounting.promise import NAME, promise
from fedsim.config import Config
from fedsim.data.reading import notes
from fedsim.errors import (
    BudgetSpentError,
    ConfigError,
    DivergedError,
    HaltedError,
    SavedModelError,
    SharedBudgetSpentError,
)
from fedsim.evaluation.metrics import evaluate
from fedsim.evaluation.private_scores import private_scores
from fedsim.grids.build import build_executor, check_reduce
from fedsim.grids.memory_needed import check_memory, remedies
from fedsim.language_model import LanguageModel, unused_parameters
from fedsim.materials import (
    Materials,
    check_device,
    default_device,
    gpus,
    load_model,
    materials_of,
)
from fedsim.plan import RoundPlan
from fedsim.report.html import write_reports
from fedsim.report.schema import HeldOut, RoundMetrics, RoundSummary, RunReport, Scores
from fedsim.report.wording import NOT_COVERED, cure_text, worse_text
from fedsim.runner.checkpoint import checkpoints_in, save_checkpoint
from fedsim.runner.folder import RunFolder
from fedsim.runner.identity import mark_diverged, version_note
from fedsim.runner.log import run_log
from fedsim.runner.model_card import model_card
from fedsim.runner.progress import CountProgress
from fedsim.runner.saved_model import check_served, save_adapter, save_model
from fedsim.runner.shared_ledger import SharedAccount, shared_account
from fedsim.runner.summary import as_held_out, delta_warnings, privacy_terms, summarise
from fedsim.runner.training import (
    check_held_out,
    has_risen,
    planned,
    rounds_paid_for,
    train,
    without_scores,
)
from fedsim.state import RoundRecord, ServerState
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors
from fedsim.trackers.tracking import TrackerFactory, epsilon_terms, find_trackers, tracking
from fedsim.utils.files import disk_message, write_atomically
from fedsim.utils.interrupts import Interrupts
from fedsim.utils.locks import sole_writer
from fedsim.utils.machine import give_back_freed_memory, keep_freed_memory

log = logging.getLogger("fedsim")

_PROBED = 64  # maximum tokens of the made-up text


def execute(config: Config, out: Path, grid: Grid, *, resume: bool = False) -> Path:
    """Do a whole run over a grid and return its folder.

    Errors in the config are raised before the folder is made.

    Raises:
        ConfigError: config or input is invalid; or `out` is in use, exists already, or (to resume)
            holds another run.
        BudgetSpentError: the budget ended before the last round; model and report are written.
        HaltedError: the strategy ended the run; model and report are written.
        DivergedError: parameters or held-out loss are not finite; a report is written.
    """
    keep_freed_memory()
    folder = RunFolder(out)
    folder.check(config, resume)
    trackers = find_trackers(config.training.trackers)
    try:
        materials = materials_of(config, folder.data_seed(config))
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"model.name_or_path = {config.model.name_or_path!r}: the network does not fit the "
            f"memory of the GPU; {remedies(config)}"
        ) from error
    for words in notes(config.data, materials.store):
        log.warning("%s", words)  # before run.log opens, because the notes show user names
    plan = build_plan(config, materials)
    folder.check_more_rounds(config, plan)
    device = _device(config)
    check_reduce(config, plan, grid)
    check_memory(config, materials, plan, grid, device)
    _warn(config, materials, plan)
    search = config.privacy.search
    if search is not None and not (search.trial is not None and folder.identity.exists()):
        raise ConfigError(
            f"privacy.search.trial = {search.trial}: a run of a search, which only `fedsim tune` "
            "starts and charges; to train a single run, remove privacy.search"
        )
    account = None if search is not None else shared_account(config.privacy.shared, plan)
    with sole_writer(out), run_log(out):
        if (diverged := folder.diverged()) is not None:
            raise DivergedError(diverged)
        if folder.report.exists() and search is not None:
            return out  # saving the model again would remove its promise
        session = _Session(config, folder, materials, plan, trackers, account)
        with session.interrupts:
            try:
                session.run(grid, device)
            except (BudgetSpentError, HaltedError, DivergedError) as error:
                session.finish(error)
                raise
            session.finish()
    return out


def _device(config: Config) -> str:
    if config.executor.gpus_per_worker >= 2 and config.executor.grid == "in-process":
        check_device(gpus(config.executor.gpus_per_worker))
    device = default_device(config.executor.gpus_per_worker)
    if config.executor.gpus_per_worker and config.executor.grid == "in-process" and device == "cpu":
        log.warning(
            "executor.gpus_per_worker = %g: torch sees no GPU here; the run computes on the CPU",
            config.executor.gpus_per_worker,
        )
    return device


def _warn(config: Config, materials: Materials, plan: RoundPlan) -> None:
    """Log dropped rows, a δ that is too large, and parameters without effect."""
    dropped = {why: count for why, count in materials.store.manifest["dropped"].items() if count}
    if dropped:
        listed = ", ".join(f"{why}: {count:,}" for why, count in dropped.items())
        log.info(
            "Rows of the data that were dropped (not protected by the privacy guarantee): %s",
            listed,
        )
    if config.training.private_evaluation is not None and not plan.score_rounds:
        raise ConfigError(
            f"training.private_evaluation with strategy.name = {config.strategy.name!r}: its plan "
            "has no private scores; remove it, or take a strategy with noise, such as uls"
        )
    if plan.noise_multiplier > 0.0:
        for words in delta_warnings(config, plan.relation, materials.num_protected, plan.unit):
            log.warning("%s", words)
    warn_unused_parameters(materials.model, config.data.sequence_length)


def warn_unused_parameters(model: LanguageModel, sequence_length: int) -> None:
    """Log trained parameters without effect on the logits of a made-up text.

    Raises:
        ConfigError: the network gives no gradient.
    """
    try:
        unused = unused_parameters(model, min(sequence_length, _PROBED))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a network that is no language model may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"model.name_or_path = {model.name!r}: its network gives no gradient: "
            f"{type(error).__name__}: {reason}"
        ) from error
    if unused:
        log.warning(
            "model.trainable: the logits of a made-up text do not depend on %s%s; if this holds "
            "for all texts, only noise changes these parameters: leave them out",
            ", ".join(unused[:8]),
            ", ..." if len(unused) > 8 else "",
        )


def write_promise(
    folder: RunFolder, config: Config, plan: RoundPlan, state: ServerState, report: RunReport
) -> None:
    """Write privacy.json and a model card into `model/` and `adapter/`, if they exist."""
    terms = privacy_terms(config, plan, state)
    costs = state.ledger.costs if plan.noise_multiplier > 0.0 else []
    for saved in (folder.model, folder.adapter):
        if saved.exists():
            content = promise(saved, terms, costs, plan.relation, report.privacy.assumptions)
            adapter, scores = saved == folder.adapter, report.private_scores
            card = model_card(config, saved, content, adapter=adapter, scores=scores)
            text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
            write_atomically(saved / NAME, text)
            write_atomically(saved / "README.md", card)


@dataclass
class _Session:
    """The side effects of a run: ledger, metrics, checkpoints, model and report on disk."""

    config: Config
    folder: RunFolder
    materials: Materials
    plan: RoundPlan
    trackers: Mapping[str, TrackerFactory]
    account: SharedAccount | None
    tell: Callable[[RoundMetrics], None] = field(init=False)  # sends a line to the open trackers
    state: ServerState = field(init=False)
    interrupts: Interrupts = field(init=False, default_factory=lambda: Interrupts("this round"))
    started: float = field(init=False, default_factory=time.monotonic)
    final: Scores | None = field(init=False, default=None)
    line: RoundMetrics = field(init=False)  # the last round's metrics, evaluated or not
    saved: int = field(init=False, default=-1)  # the round whose state and line are on disk
    moments: bool = field(init=False, default=False)  # whether `state` had optimizer state
    warned: bool = field(init=False, default=False)  # whether it warned of non-finite updates
    losses: dict[int, float] = field(init=False, default_factory=dict)  # held-out loss by round

    def run(self, grid: Grid, device: str) -> None:
        """Begin or resume the run and train to its end."""
        folder, materials, repeats = self.folder, self.materials, self.plan.draws.repeat
        folder.begin(self.config, materials.sources, materials.seed)
        if note := version_note(folder.identity):
            log.info("%s", note)
        charged = folder.read_ledger()
        if self.account is not None:
            self.account.check_holds(charged)
        resumed = folder.take_up(repeats=repeats)
        # A kill before the first checkpoint loses rounds, but keeps their charges.
        start = ServerState(0, materials.model.initial_parameters())
        self.state = resumed or (start if repeats else replace(start, ledger=charged))
        if resumed is not None:
            earlier = folder.read_metrics()
            self.losses = {line.round: line.held_out.loss for line in earlier if line.held_out}
            with self._keeping():
                self._complete()
        shown = tracking(self.trackers, folder.path, self.config, self._terms)
        with shown as self.tell, self._keeping():  # saves before trackers close, which may be slow
            if resumed is None:
                self._write(self._first_line())
            self._train(grid, device)

    def _train(self, grid: Grid, device: str) -> None:
        rounds = self.config.strategy.rounds
        progress = CountProgress(self.config.strategy.name, rounds, self.state.round)
        executor = build_executor(self.config, self.materials, self.plan, grid, device)
        with progress as bar:

            def on_round(state: ServerState, record: RoundRecord) -> ServerState:
                line = self._on_round(state, record)
                loss = "" if line.held_out is None else f"held-out loss {line.held_out.loss:.4f}"
                bar.advance(note=loss and f"{loss} (not protected by the privacy guarantee)")
                return self.state

            train(
                self.state,
                self.plan,
                executor,
                rounds,
                on_round=on_round,
                budget=self._budget(),
                before_round=self._before_round,
            )

    def _before_round(self, state: ServerState) -> None:
        """Defer signals until the round is done, and charge it in a shared ledger.

        An interrupt between charge and release would make the run pay for the round twice.
        """
        self.interrupts.hold()
        self._charge_shared(state)

    def _charge_shared(self, state: ServerState) -> None:
        """Charge the round in the shared ledger, if there is one, before the round starts."""
        if self.account is not None:
            plan, rounds_left = self.plan, self.config.strategy.rounds - state.round
            upcoming = [(plan.cost, rounds_left), *plan.scores_after(state.round)]
            self.account.charge(
                state.round, plan.cost, plan.draws.release_id, upcoming, own=state.ledger
            )

    def _on_round(self, state: ServerState, record: RoundRecord) -> RoundMetrics:
        """Score, evaluate and save a round; `_keep_last` handles errors in between."""
        self.state, self.moments = state, bool(state.optimizer_state)
        self.line = RoundMetrics.model_validate({"round": state.round, **record.to_json()})
        self.folder.write_ledger(state.ledger)  # before any other file of the round
        self.interrupts.release()
        self._score()
        if self._is_last(state):
            self._keep()  # the checkpoint comes before the model, in case the process ends now
        self._write(self._evaluated())
        if record.num_non_finite and not self.warned:
            self.warned = True
            log.warning(
                "round %d: %d of %d updates had a NaN or an infinity and counted as zero; "
                "metrics.jsonl has this number for each round (not protected by the privacy "
                "guarantee)",
                state.round,
                record.num_non_finite,
                record.num_units,
            )
        if state.round % self.config.training.checkpoint_every == 0 and self.saved != state.round:
            self._save()
        return self.line

    def _complete(self) -> None:
        """Score and evaluate the last round, if an interrupt prevented that."""
        self.saved, self.moments = self.state.round, bool(self.state.optimizer_state)
        self.line = self.folder.read_metrics()[-1]
        before = self.line
        self._score()
        if self.line.held_out is None:
            self.line = self._evaluated()
        if self.line is not before:
            self._keep()
            self._check(self.line)

    def _score(self) -> None:
        """Charge and release private scores if they are due and the line has none."""
        plan, config, state = self.plan, self.config.training.private_evaluation, self.state
        due = state.round in plan.score_rounds and self.line.private_scores is None
        if config is None or not due:
            return
        scores = private_scores(
            self.materials.model,
            state.model,
            self.materials.store,
            self.materials.split.held_out_examples,
            loss_bound=config.loss_bound,
            noise_multiplier=plan.score_noise_multiplier,
            key=plan.draws.noise(state.round, "scores"),
        )
        charged = plan.charged_score(state.ledger, state.round)
        if self.account is not None and charged is not state.ledger:
            self.account.charge(state.round, plan.score_cost, plan.draws.score_release_id)
        self.folder.write_ledger(charged)
        self.state = replace(state, ledger=charged)
        self.line = self.line.model_copy(update={"private_scores": scores})
        self.saved = -1

    def _evaluated(self) -> RoundMetrics:
        """Return the last round's metrics, with ε and held-out scores if they are due."""
        due = self.state.round % self.config.training.evaluate_every == 0
        if not (due or self._is_last(self.state)):
            return self.line
        epsilon = self._epsilon()
        return RoundMetrics.model_validate(
            {
                **dict(self.line),
                "epsilon": epsilon,
                "epsilon_terms": None if epsilon is None else self._terms,
                "held_out": self._held_out(self.state),
                "held_out_last": self._score_of(self.state.parameters)
                if self.state.average
                else None,
            }
        )

    def _is_last(self, state: ServerState) -> bool:
        return state.round == self.config.strategy.rounds

    def _first_line(self) -> RoundMetrics:
        epsilon = 0.0 if self.plan.noise_multiplier > 0.0 else None
        return RoundMetrics(round=0, epsilon=epsilon, held_out=self._held_out(self.state))

    def _write(self, line: RoundMetrics) -> None:
        if self.saved == line.round:  # the file has this line without the evaluation
            self._write_last(line)
        else:
            self.folder.append_metrics(line)
        self.line = line
        self.tell(line)
        self._check(line)

    def _check(self, line: RoundMetrics) -> None:
        self._watch(line)
        if self.plan.search is None:  # in a search, ε would not cover this stop
            check_held_out(line, self.materials)

    def _watch(self, line: RoundMetrics) -> None:
        """Warn once per run if held-out loss has risen for three evaluations."""
        known = has_risen([*self.losses.values()])
        if line.held_out is not None:
            self.losses[line.round] = line.held_out.loss
        if has_risen([*self.losses.values()]) and not known:
            entries = sum(value.numel() for value in self.state.parameters.values())
            log.warning(
                "round %d: held-out loss has risen for three evaluations (%s): %s",
                line.round,
                NOT_COVERED,
                cure_text(RoundSummary.of(self.folder.read_metrics(), entries)),
            )

    def _held_out(self, state: ServerState) -> HeldOut:
        """Evaluate; the last state is saved first and read back from disk.

        So the reported final utility is that of the saved files.
        """
        if self._is_last(state):
            return as_held_out(self._evaluate_saved(state))
        return self._score_of(state.model)

    def _score_of(self, parameters: Tensors) -> HeldOut:
        held_out = self.materials.split.held_out_examples
        return as_held_out(
            evaluate(
                self.materials.model,
                parameters,
                self.materials.store,
                held_out,
                self.plan.unit,
            )
        )

    def _evaluate_saved(self, state: ServerState) -> Scores:
        if self.config.model.merged:
            save_model(self.materials.model, state.model, self.folder.model)
        save_adapter(self.materials.model, state.model, self.folder.adapter)
        give_back_freed_memory()  # the rounds are over; the next line loads a second network
        try:
            saved = load_model(
                self.folder.served(self.config),
                sequence_length=self.config.data.sequence_length,
                device=default_device(self.config.executor.gpus_per_worker),
            )
        except ConfigError as error:
            raise SavedModelError(
                "the saved model cannot be opened (a plug-in's `save` must write files for its "
                f"loader, and a config.json that names the loader): {error}"
            ) from error
        store, split = self.materials.store, self.materials.split
        some = split.held_out_examples if len(split.held_out_examples) else split.train_examples
        check_served(self.materials.model, state.model, saved, store, some)
        self.final = evaluate(
            saved, saved.initial_parameters(), store, split.held_out_examples, self.plan.unit
        )
        return self.final

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except DivergedError:
            raise  # a diverged run cannot resume
        except BaseException:
            self._keep_last()
            raise

    def _keep_last(self) -> None:
        """Save the last state before an error ends the run, so that a resume repeats no round.

        In the middle of a server step this is impossible: the step overwrites the optimizer's
        moments, so neither the old nor the new state is complete.
        """
        state: ServerState | None = getattr(self, "state", None)  # None before the run begins
        if state is None or state.round in (0, self.saved):
            return
        if self.moments and not state.optimizer_state:
            log.warning("the error came in the middle of a server step: --resume repeats the round")
            return
        self.interrupts.hold()
        try:
            try:
                self._keep()
            except Exception as error:
                if disk_message(error) is None or not self._make_room():
                    raise
                self._keep()
            log.info("the state after round %d is saved", state.round)
        except Exception as error:  # log it; the first error is the one to raise
            reason = disk_message(error) or f"{type(error).__name__}: {error}"
            log.warning("round %d is lost, --resume repeats it: %s", state.round, reason)
        self.interrupts.release()

    def _keep(self) -> None:
        """Save ledger, metrics and state of the last round; an evaluation may be missing."""
        self.folder.write_ledger(self.state.ledger)
        self._write_last(self.line)
        self._save()

    def _write_last(self, line: RoundMetrics) -> None:
        earlier = self.folder.read_metrics()[: line.round]
        self.folder.write_metrics([*earlier, line])

    def _make_room(self) -> bool:
        """Delete the oldest checkpoint if the next one would; never the only one."""
        old = checkpoints_in(self.folder.checkpoints)
        replaced = len(old) >= max(2, self.config.training.keep_checkpoints)
        if replaced:
            old[0].unlink()
        return replaced

    def _save(self) -> None:
        self.folder.write_seconds(self._seconds())
        self.started = time.monotonic()
        keep = self.config.training.keep_checkpoints
        save_checkpoint(self.folder.checkpoints, self.state, keep)
        self.saved = self.state.round

    def _seconds(self) -> float:
        return self.folder.read_seconds() + time.monotonic() - self.started

    def finish(self, ended: HaltedError | DivergedError | BudgetSpentError | None = None) -> None:
        """Write the reports, and the model unless it is written already or the run diverged.

        The round of a halt or a divergence depends on private text without noise. The end of a
        shared budget may depend on choices that others made after looking at this run. In these
        cases ε counts all planned rounds; after a halt or a divergence, the ledgers count them too.
        """
        until: int | None = None
        if isinstance(ended, HaltedError | DivergedError | SharedBudgetSpentError):
            until = self._charge_planned(write=not isinstance(ended, SharedBudgetSpentError))
        if isinstance(ended, DivergedError):
            mark_diverged(self.folder.identity, str(ended))
            self.final = without_scores(self.materials, self.folder.model, self.folder.adapter)
        final = self.final or self._evaluate_saved(self.state)
        report = summarise(
            self.config,
            self.materials,
            self.plan,
            self.state,
            self.folder.read_metrics(),
            final=final,
            title=self.folder.path.resolve().name,
            seconds=self._seconds(),
            ended=ended,
            charged_until=until,
        )
        if self.plan.search is None:  # in a search only the winner gets a promise
            write_promise(self.folder, self.config, self.plan, self.state, report)
        write_reports(self.folder.path, report)
        if worse := worse_text(report):
            log.warning("%s", worse)

    def _charge_planned(self, *, write: bool) -> int:
        """Charge all planned rounds and scores; return the last charged round.

        It can be earlier than planned, if the run's own budget ends first. Only with `write` are
        the ledgers on disk charged.
        """
        rounds, budget = self.config.strategy.rounds, self._budget()
        plan, state = self.plan, self.state
        if budget is not None and plan.cost.run_rounds is None:
            rounds = rounds_paid_for(budget, state, plan, rounds)
        self.state = replace(state, ledger=planned(state, plan, rounds))
        if not write:
            return rounds
        with suppress(BudgetSpentError):  # the shared budget has nothing left to charge
            for round in range(state.round, rounds):
                self._charge_shared(replace(state, round=round))
            if self.account is not None and plan.search is None:
                for at in (at for at in plan.score_rounds if at > state.round):
                    self.account.charge(at, plan.score_cost, plan.draws.score_release_id)
        self.folder.write_ledger(self.state.ledger)
        return rounds

    @property
    def _terms(self) -> str:
        """The terms to state with an ε of this run; "" without a guarantee."""
        return epsilon_terms(self.plan, self.config)

    def _budget(self) -> Budget | None:
        privacy, plan = self.config.privacy, self.plan
        if plan.noise_multiplier == 0.0 or privacy.epsilon is None or privacy.delta is None:
            return None
        return Budget(privacy.epsilon, privacy.delta, plan.accountant, plan.relation)

    def _epsilon(self) -> float | None:
        """Return the ε of all charges so far; the cost of a whole run is charged at its start."""
        delta, plan = self.config.privacy.delta, self.plan
        if plan.noise_multiplier == 0.0 or delta is None:
            return None
        return self.state.ledger.epsilon(delta, plan.accountant, plan.relation)
