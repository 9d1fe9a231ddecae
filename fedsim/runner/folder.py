"""The run folder: its files by name, how a run begins, and how it resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedsim.accounting.ledger import Ledger
from fedsim.config import Config, ModelConfig, load_config
from fedsim.errors import ConfigError, about
from fedsim.materials import Materials, new_data_seed
from fedsim.parts import server_optimizer
from fedsim.plan import RoundPlan
from fedsim.report.schema import RoundMetrics
from fedsim.runner.checkpoint import newest_whole_state
from fedsim.runner.identity import (
    check_sources,
    keep_seed,
    kept_seed,
    read_identity,
    write_identity,
)
from fedsim.runner.log import LOG
from fedsim.seeding import is_score
from fedsim.state import ServerState
from fedsim.utils.files import drop_temporaries, naming, writable_cache_dir, write_atomically
from fedsim.utils.json_text import flat, read_json
from fedsim.utils.locks import LOCK

# The source may move: `check_sources` compares its digest.
_MAY_CHANGE = {"data.source"}
_MAY_CHANGE_WITH_ROUNDS = {"strategy.rounds", "privacy.noise_multiplier", "privacy.epsilon"}


class RunFolder:
    """The files of one run, by name; docs/privacy.md says what each reveals.

    Attributes:
        config: the resolved config; `fedsim run` accepts it.
        identity: the format of the folder, and the sources of the run.
        metrics: one JSON object per round.
        ledger: all charged releases.
        checkpoints: server states by round.
        model: the fine-tuned model in transformers' format.
        adapter: the trained adapter in peft's format; only if nothing else was trained.
        report: the report, as data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.identity = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.ledger = path / "ledger.json"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.report = path / "report.json"

    def served(self, config: Config) -> ModelConfig:
        """Return the config that opens the trained model: `model/`, or the base with `adapter/`.

        It keeps the attention of training: with another one, long texts might not fit in memory.
        """
        if config.model.merged:
            return ModelConfig(name_or_path=str(self.model), attention=config.model.attention)
        kept = {"name_or_path", "pretraining_steps", "attention", "quantisation"}
        base = config.model.model_dump(include=kept)
        return ModelConfig(**base, adapter=str(self.adapter), merged=False)

    def check(self, config: Config, resume: bool, *, exactly: bool = False) -> None:
        """Raise `ConfigError` if a run with this config may not begin, or with `resume` continue.

        Args:
            config: config of the run.
            resume: continue the run in the folder.
            exactly: refuse a resume with more rounds or with a source at another path.
        """
        if resume and self.config.exists():
            self.check_resumable(config, exactly=exactly)
        else:  # also with `resume`, if a kill left nothing written
            self.check_fresh()

    def check_finished(self) -> None:
        """Raise `ConfigError` unless the folder holds a trained model and its report."""
        if not self.path.is_dir():
            raise ConfigError(f"RUN_DIR = {str(self.path)!r}: no such folder")
        is_trained = self.model.exists() or self.adapter.exists()
        if not (is_trained and self.config.exists() and self.report.exists()):
            raise ConfigError(
                f"RUN_DIR = {str(self.path)!r}: holds no finished run (config.toml, model/ or "
                "adapter/, report.json); finish it with fedsim run --resume, or give another folder"
            )

    def check_fresh(self, begun: str = "config.toml") -> None:
        """Raise `ConfigError` unless the folder is absent or empty.

        Args:
            begun: name of the file that a resumable folder contains.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path}: is a file; name a folder")
        if (self.path / begun).exists():
            raise ConfigError(
                f"--out {self.path}: already exists; continue it with --resume, or name another"
            )
        if self.path.exists() and any(map(_is_content, self.path.iterdir())):
            raise ConfigError(
                f"--out {self.path}: holds files, but no run to resume; name another folder"
            )

    def check_resumable(self, config: Config, *, exactly: bool = True) -> None:
        """Raise `ConfigError` unless the folder holds a run with this config."""
        before, now = flat(self.read_config().model_dump()), flat(config.model_dump())
        changed = sorted(key for key in before | now if before.get(key) != now.get(key))
        if not exactly:
            more = now["strategy.rounds"] > before["strategy.rounds"]
            may_change = _MAY_CHANGE | (_MAY_CHANGE_WITH_ROUNDS if more else set())
            changed = [key for key in changed if key not in may_change]
        if changed:
            values = [f"{key} = {now.get(key)!r} and not {before.get(key)!r}" for key in changed]
            raise ConfigError(
                f"{', '.join(values)}: differs from the run's {self.path / 'config.toml'}; "
                "a run keeps its config, start a new run with another --out"
            )

    def check_more_rounds(self, config: Config, plan: RoundPlan) -> None:
        """Raise `ConfigError` if the run cannot be extended to the config's number of rounds.

        It can if each round has its own cost and all costs are equal.
        """
        if not self.config.exists():
            return
        now, before = config.strategy.rounds, self.read_config().strategy.rounds
        if now == before:
            return
        field = f"--resume: strategy.rounds = {now} and not {before}"
        if plan.cost.run_rounds is not None:
            raise ConfigError(
                f"{field}: with {plan.sampling.kind!r} sampling, one cost covers exactly the "
                f"planned rounds of the run in {self.path}; start a new run with another --out"
            )
        clip, begun = config.strategy.clip.schedule, server_optimizer(self.read_config())
        if begun != server_optimizer(config) or (clip is not None and clip.rounds is None):
            raise ConfigError(
                f"{field}: the run in {self.path} has a schedule or an average over all of its "
                "rounds; start a new run with another --out"
            )
        items = self.read_ledger().items
        paid = {item.cost.noise_multiplier for item in items if not is_score(item.release)}
        if paid - {plan.noise_multiplier}:
            raise ConfigError(
                f"{field}: with {now} rounds this guarantee needs another noise multiplier than "
                f"the run in {self.path} has; replace privacy.epsilon by the run's "
                f"privacy.noise_multiplier = {min(paid)!r}: then ε grows"
            )

    def read_config(self) -> Config:
        """Return the run's config.

        Raises:
            ConfigError: it cannot be read, or the folder has an earlier format.
        """
        read_identity(self.identity)
        return load_config(self.config)

    def data_seed(self, config: Config) -> int:
        """Return the seed of the run's choices for users; see `Materials.seed`.

        With seeded noise it is the config's seed. With secure noise it is a secret of 128 bits
        from the operating system: the one stored when the run began, or a new one before that.

        Raises:
            ConfigError: this machine does not hold the secret, or cannot store it.
        """
        identity = read_identity(self.identity)
        if config.privacy.noise == "secure":
            writable_cache_dir()
        return kept_seed(identity["id"], self.path) if "id" in identity else new_data_seed(config)

    def diverged(self) -> str | None:
        """Return the error message of a run that diverged, which cannot resume; else None."""
        return read_identity(self.identity).get("diverged")

    def begin(
        self,
        config: Config,
        sources: Mapping[str, str],
        data_seed: int,
        *,
        kept_as: str | None = None,
    ) -> None:
        """Make the folder; write the resolved config and the sources of the run.

        The data seed of a run with secure noise is stored outside of the folder, which users may
        publish.

        Args:
            config: config of the run.
            sources: see `Materials.sources`.
            data_seed: see `data_seed`.
            kept_as: id of an already stored data seed, such as a search stores for its trials.

        Raises:
            ConfigError: the folder cannot be written, or its run has other sources.
        """
        check_sources(self.identity, sources, resumes=True)
        secret = config.privacy.noise == "secure"
        with about(f"--out {self.path}: cannot be written: ", (OSError,)):
            # The config first: a folder with other files but no config cannot be resumed.
            write_atomically(self.config, config.to_toml())
            if not self.identity.exists():
                run_id = (kept_as or keep_seed(data_seed)) if secret else None
                write_identity(self.identity, sources, run_id)
            self.checkpoints.mkdir(exist_ok=True)
            for folder in (self.path, self.checkpoints):
                drop_temporaries(folder)

    def check_texts(self, materials: Materials) -> None:
        """Raise `ConfigError` unless the run used these texts.

        With other texts the split would differ, and trained users could count as held out.
        """
        check_sources(self.identity, {"data.source": materials.text_digest})

    def write_ledger(self, ledger: Ledger) -> None:
        """Write the ledger, unless the file has more releases. Call it before using a release.

        A resumed seeded run repeats releases that the file already has.
        """
        if self.read_ledger().num_releases <= ledger.num_releases:
            write_atomically(self.ledger, json.dumps(ledger.to_json(), indent=1))

    def read_ledger(self) -> Ledger:
        """Return the ledger on disk; an empty one if there is no file."""
        if not self.ledger.exists():
            return Ledger()
        with about(f"ledger {self.ledger}: damaged: ", (OSError, ValueError)):
            return Ledger.from_json(read_json(self.ledger))

    def append_metrics(self, line: RoundMetrics) -> None:
        """Add a line to the metrics."""
        with naming(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(_text(line))
            file.flush()
            os.fsync(file.fileno())  # lines reach the disk before their checkpoint

    def read_metrics(self) -> list[RoundMetrics]:
        """Return the lines up to the first incomplete one, which a kill may leave."""
        lines: list[RoundMetrics] = []
        if self.metrics.exists():
            with suppress(ValueError):
                for text in self.metrics.read_text("utf-8", errors="replace").split("\n"):
                    lines.append(RoundMetrics.model_validate_json(text))
        return lines

    def write_metrics(self, lines: Iterable[RoundMetrics]) -> None:
        """Replace all lines of the metrics."""
        write_atomically(self.metrics, "".join(map(_text, lines)))

    def take_up(self, *, repeats: bool) -> ServerState | None:
        """Return the newest checkpoint's state, or None; cut the metrics back to it.

        The run repeats the rounds after the checkpoint. Damaged checkpoints are skipped: see
        `newest_whole_state`.

        Args:
            repeats: whether repeated rounds give the same releases, which are charged once. If
                false, they are new releases, and all earlier charges stay.

        Raises:
            ConfigError: the ledger or the metrics lack rounds that the checkpoint has.
        """
        charged, state = self.read_ledger(), newest_whole_state(self.checkpoints)
        last = -1 if state is None else state.round
        done = [line for line in self.read_metrics() if line.round <= last]
        if len(done) != last + 1 or charged.num_releases < last:
            raise ConfigError(
                f"--resume: {self.path} has a checkpoint of round {last}, and {self.ledger.name} "
                f"or {self.metrics.name} lacks rounds before it: restore the files that belong to "
                "it, or start a new run with another --out"
            )
        self.write_metrics(done)
        return state if state is None or repeats else replace(state, ledger=charged)

    def read_seconds(self) -> float:
        """Return the run's seconds up to its last save; 0 if unknown."""
        with suppress(OSError, ValueError, TypeError):
            return float(read_json(self.path / "seconds.json"))
        return 0.0

    def write_seconds(self, seconds: float) -> None:
        """Store the run's seconds, outside of the metrics, which a resumed run repeats exactly."""
        write_atomically(self.path / "seconds.json", json.dumps(seconds))


def _text(line: RoundMetrics) -> str:
    return line.model_dump_json(exclude_none=True) + "\n"


def _is_content(path: Path) -> bool:
    """Whether a file counts as content; lock, log and half-written configs do not."""
    half_written = path.name.startswith(".config.toml.") and path.name.endswith(".tmp")
    return not half_written and path.name not in (LOCK, LOG)
