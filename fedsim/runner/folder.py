"""The run folder: its files by name, how it is begun, and how it is taken up again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.accounting.ledger import Ledger
from fedsim.config import Config, ModelConfig, load_config
from fedsim.errors import ConfigError, about
from fedsim.materials import Materials, new_data_seed
from fedsim.parts import server_optimizer
from fedsim.plan import RoundPlan
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

# A source is known by its digest, wherever it lies: `check_sources`.
_MAY_CHANGE = {"data.source"}
_MAY_CHANGE_WITH_ROUNDS = {"strategy.rounds", "privacy.noise_multiplier", "privacy.epsilon"}


class RunFolder:
    """The files of one run, by name; docs/privacy.md says what each tells a reader.

    Attributes:
        config: the resolved config; `fedsim run` takes it again.
        identity: the format of the folder, and the sources of the run.
        metrics: a JSON object a round.
        ledger: every release that was charged.
        checkpoints: server states by round.
        model: the fine-tuned model, as transformers opens it.
        adapter: the trained adapter, as peft opens it; only where nothing else was trained.
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
        """Return what opens the trained model: `model/`, or the base with `adapter/`.

        Attention is computed as in training: long texts may fit the memory in no other way.
        """
        if config.model.merged:
            return ModelConfig(name_or_path=str(self.model), attention=config.model.attention)
        kept = {"name_or_path", "pretraining_steps", "attention"}
        base = config.model.model_dump(include=kept)
        return ModelConfig(**base, adapter=str(self.adapter), merged=False)

    def is_trained(self) -> bool:
        """Whether there is a trained model: training leaves it at its end."""
        return self.model.exists() or self.adapter.exists()

    def check(self, config: Config, resume: bool, *, exactly: bool = False) -> None:
        """Raise `ConfigError` where a run of this config may not begin, or go on with `resume`.

        Unless `exactly` with its config, it may go on with its source at another place, and with
        more rounds: see `check_more_rounds`.
        """
        if resume and self.config.exists():
            self.check_resumable(config, exactly=exactly)
        else:  # a run that was killed before it wrote anything starts again
            self.check_fresh()

    def check_there(self) -> None:
        """Raise `ConfigError` where there is no such folder."""
        if not self.path.is_dir():
            raise ConfigError(f"RUN_DIR = {str(self.path)!r}: no such folder")

    def check_fresh(self, begun: str = "config.toml") -> None:
        """Raise `ConfigError` unless the folder is absent or empty.

        Args:
            begun: the file in it that shows that it can be taken up.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path}: is a file; name a folder")
        if (self.path / begun).exists():
            raise ConfigError(
                f"--out {self.path}: already there; take it up with --resume, or name another"
            )
        if self.path.exists() and any(map(_is_content, self.path.iterdir())):
            raise ConfigError(
                f"--out {self.path}: holds files, and nothing to take up; name another folder"
            )

    def check_resumable(self, config: Config, *, exactly: bool = True) -> None:
        """Raise `ConfigError` unless the folder is of a run with this config."""
        before, now = flat(self.read_config().model_dump()), flat(config.model_dump())
        changed = sorted(key for key in before | now if before.get(key) != now.get(key))
        if not exactly:
            more = now["strategy.rounds"] > before["strategy.rounds"]
            may_change = _MAY_CHANGE | (_MAY_CHANGE_WITH_ROUNDS if more else set())
            changed = [key for key in changed if key not in may_change]
        if changed:
            values = [f"{key} = {now.get(key)!r} and not {before.get(key)!r}" for key in changed]
            raise ConfigError(
                f"{', '.join(values)}: not as in the run's {self.path / 'config.toml'}; "
                "a run keeps its config, start another with another --out"
            )

    def check_more_rounds(self, config: Config, plan: RoundPlan) -> None:
        """Raise `ConfigError` where a run cannot go on to more rounds than it was begun with.

        It can where each round has a price of its own, and all of them the same.
        """
        if not self.config.exists():
            return
        now, before = config.strategy.rounds, self.read_config().strategy.rounds
        if now == before:
            return
        field = f"--resume: strategy.rounds = {now} and not {before}"
        if plan.cost.run_rounds is not None:
            raise ConfigError(
                f"{field}: one price pays for all rounds of the run in {self.path} and for no "
                f"more, with {plan.sampling.kind!r} sampling; start another with another --out"
            )
        clip, begun = config.strategy.clip.schedule, server_optimizer(self.read_config())
        if begun != server_optimizer(config) or (clip is not None and clip.rounds is None):
            raise ConfigError(
                f"{field}: the run in {self.path} has a schedule, or an average, over all of its "
                "rounds; start another with another --out"
            )
        items = self.read_ledger().items
        paid = {item.cost.noise_multiplier for item in items if not is_score(item.release)}
        if paid - {plan.noise_multiplier}:
            raise ConfigError(
                f"{field}: {now} rounds need other noise for this guarantee than those of the run "
                f"in {self.path} have; put privacy.noise_multiplier = {min(paid)!r}, which is "
                "theirs, in the place of privacy.epsilon: then ε grows"
            )

    def read_config(self) -> Config:
        """Return the run's config.

        Raises:
            ConfigError: it cannot be read, or the folder has a format of an earlier fedsim.
        """
        read_identity(self.identity)
        return load_config(self.config)

    def data_seed(self, config: Config) -> int:
        """Return the seed of the run's choices for users; see `Materials.seed`.

        The config's seed where noise is seeded. With secure noise a secret of 128 bits from the
        operating system: the one that was kept when the run began, or a new one before that.

        Raises:
            ConfigError: the secret is not kept on this machine, and the message says where it would
                be; or it could not be kept.
        """
        identity = read_identity(self.identity)
        if config.privacy.noise == "secure":
            writable_cache_dir()
        return kept_seed(identity["id"], self.path) if "id" in identity else new_data_seed(config)

    def diverged(self) -> str | None:
        """Return why the run ended, where it diverged: such a run never goes on."""
        return read_identity(self.identity).get("diverged")

    def begin(
        self,
        config: Config,
        sources: Mapping[str, str],
        data_seed: int,
        *,
        kept_as: str | None = None,
    ) -> None:
        """Make the folder, write the resolved config and the sources of the run.

        The data seed of a run with secure noise is kept elsewhere: the model is to be given away.
        `kept_as` is its id where it is kept already, as that of a search is for its trials.

        Raises:
            ConfigError: it cannot be written, or was begun from other sources.
        """
        check_sources(self.identity, sources, resumes=True)
        secret = config.privacy.noise == "secure"
        with about(f"--out {self.path}: cannot be written: ", (OSError,)):
            # The config first: a folder with anything in it but no config could not be taken up.
            write_atomically(self.config, config.to_toml())
            if not self.identity.exists():
                run_id = (kept_as or keep_seed(data_seed)) if secret else None
                write_identity(self.identity, sources, run_id)
            self.checkpoints.mkdir(exist_ok=True)
            for folder in (self.path, self.checkpoints):
                drop_temporaries(folder)

    def check_texts(self, materials: Materials) -> None:
        """Raise `ConfigError` unless the run was made from these texts.

        Otherwise users who came later would count as trained on, and others as held out.
        """
        check_sources(self.identity, {"data.source": materials.text_digest})

    def write_ledger(self, ledger: Ledger) -> None:
        """Put the ledger on disk. Comes before anything that a release has touched.

        A seeded run that was taken up makes releases again that the file has; it never shrinks.
        """
        if self.read_ledger().num_releases <= ledger.num_releases:
            write_atomically(self.ledger, json.dumps(ledger.to_json(), indent=1))

    def read_ledger(self) -> Ledger:
        """Return the ledger on disk; empty where there is none yet."""
        if not self.ledger.exists():
            return Ledger()
        with about(f"ledger {self.ledger}: damaged: ", (OSError, ValueError)):
            return Ledger.from_json(read_json(self.ledger))

    def append_metrics(self, line: str) -> None:
        """Add a line, a JSON object, to the metrics."""
        with naming(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())  # no checkpoint outlives the lines before it

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all complete lines; a line cut short by a kill ends the list."""
        lines: list[dict[str, Any]] = []
        if self.metrics.exists():
            with suppress(ValueError, TypeError, KeyError):
                for text in self.metrics.read_text("utf-8", errors="replace").splitlines():
                    line = json.loads(text)
                    lines.append({**line, "round": line["round"]})
        return lines

    def write_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace all lines of the metrics."""
        texts = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
        write_atomically(self.metrics, "".join(f"{text}\n" for text in texts))

    def take_up(self, *, repeats: bool) -> ServerState | None:
        """Return the last checkpoint's state, metrics cut back to it; None if there is none.

        Rounds after the checkpoint are done again. Where that `repeats` their draws, they give the
        same release, which is charged once; else they are new releases, so everything that was
        ever charged stays charged. A damaged checkpoint is passed over: see `newest_whole_state`.

        Raises:
            ConfigError: the ledger or the metrics lack rounds that the checkpoint has.
        """
        charged, state = self.read_ledger(), newest_whole_state(self.checkpoints)
        last = -1 if state is None else state.round
        done = [line for line in self.read_metrics() if line["round"] <= last]
        if len(done) != last + 1 or charged.num_releases < last:
            raise ConfigError(
                f"--resume: {self.path} has a checkpoint of round {last}, and {self.ledger.name} "
                f"or {self.metrics.name} lacks rounds before it: put back the files that belong to "
                "it, or start another run with another --out"
            )
        self.write_metrics(done)
        return state if state is None or repeats else replace(state, ledger=charged)

    def read_seconds(self) -> float:
        """Return the time that the run took until it was last saved."""
        with suppress(OSError, ValueError, TypeError):
            return float(read_json(self.path / "seconds.json"))
        return 0.0

    def write_seconds(self, seconds: float) -> None:
        """Keep the time so far; apart from the metrics, which a resumed run repeats to the bit."""
        write_atomically(self.path / "seconds.json", json.dumps(seconds))


def _is_content(path: Path) -> bool:
    """Whether a file counts as content: not one that a kill during a first write left behind."""
    half_written = path.name.startswith(".config.toml.") and path.name.endswith(".tmp")
    return not half_written and path.name not in (LOCK, LOG)
