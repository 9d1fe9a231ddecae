"""The run folder: its files by name, how it is begun, and how it is taken up again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.accounting.ledger import Ledger
from fedsim.config import Config, ModelConfig, load_config
from fedsim.errors import ConfigError, about
from fedsim.materials import Materials, new_data_seed
from fedsim.report.schema import RoundMetrics, load_report
from fedsim.runner.checkpoint import newest_whole_state
from fedsim.runner.identity import (
    check_format,
    check_sources,
    keep_seed,
    kept_seed,
    read_identity,
    write_identity,
)
from fedsim.runner.log import LOG
from fedsim.state import ServerState
from fedsim.utils.files import drop_temporaries, naming, write_atomically
from fedsim.utils.json_text import is_count, parse_json, read_json
from fedsim.utils.locks import LOCK


class RunFolder:
    """The files of one run, by name; docs/privacy.md says what each tells a reader.

    Attributes:
        config: the resolved config; `fedsim run` takes it again.
        identity: the format of the folder and what the run is made from.
        metrics: a JSON object a round.
        ledger: every release that was charged.
        checkpoints: server states by round.
        model: the fine-tuned model, as transformers opens it.
        adapter: what was trained as an adapter, as peft opens it; where nothing else was trained.
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
        """Whether there is a trained model: what training leaves at its end."""
        return self.model.exists() or self.adapter.exists()

    def check(self, config: Config, resume: bool) -> None:
        """Raise `ConfigError` where a run of this config may not begin, or go on with `resume`."""
        if resume and self.config.exists():
            self.check_resumable(config)
        else:  # a run that was killed before it wrote anything starts again
            self.check_fresh()

    def check_there(self) -> None:
        """Raise `ConfigError` where there is no such folder, or it is only a part of a run's."""
        if not self.path.is_dir():
            raise ConfigError(f"RUN_DIR = {str(self.path)!r}: no such folder")
        whole = RunFolder(self.path.resolve().parent)
        if whole.identity.is_file() and self.path.resolve() in (whole.model, whole.adapter):
            raise ConfigError(
                f"RUN_DIR = {str(self.path)!r}: is a part of a run; give {str(whole.path)!r}"
            )

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

    def check_resumable(self, config: Config) -> None:
        """Raise `ConfigError` unless the folder is of a run with this very config."""
        if not self.config.exists():
            raise ConfigError(f"--resume: {self.path} holds no run (no config.toml)")
        check_format(self.identity)
        started = self.read_config()
        before, now = _flat(started.model_dump()), _flat(config.model_dump())
        changed = sorted(
            key
            for key in before.keys() | now.keys()
            if key not in before or key not in now or before[key] != now[key]
        )
        if set(config.training.trackers) < set(started.training.trackers):
            changed = [key for key in changed if key != "training.trackers"]  # one that fails
        if changed:
            values = [f"{key} = {now.get(key)!r} and not {before.get(key)!r}" for key in changed]
            raise ConfigError(
                f"{', '.join(values)}: not as in the run in {self.path}; "
                "a run keeps its config, start another with another --out"
            )

    def read_config(self) -> Config:
        """Return the run's config.

        Raises:
            ConfigError: it cannot be read, or an earlier fedsim made the folder, which chose
                otherwise what is held out and trained on.
        """
        if not read_identity(self.identity) and self.ledger.exists():
            raise ConfigError(
                f"run {self.path}: has releases and no {self.identity.name}; an earlier fedsim "
                "made it and split the texts otherwise: open it with that one"
            )
        return load_config(self.config)

    def data_seed(self, config: Config) -> int:
        """Return what the run's choices for users are drawn from; see `Materials.seed`.

        The config's seed where noise is seeded. With secure noise a secret of 128 bits from the
        operating system: the one that was kept when the run began, or a new one before that.

        Raises:
            ConfigError: the secret is not kept on this machine; the message says where it would be.
        """
        identity = read_identity(self.identity)
        return kept_seed(identity["id"], self.path) if "id" in identity else new_data_seed(config)

    def diverged(self) -> str | None:
        """Return why the run ended, where it diverged.

        It never goes on: which round it ended in may have been decided by private text, without
        noise, and a model of that round would show it.
        """
        return read_identity(self.identity).get("diverged")

    def begin(
        self,
        config: Config,
        sources: Mapping[str, str],
        data_seed: int,
        *,
        kept_as: str | None = None,
    ) -> None:
        """Make the folder, write the resolved config and what the run is made from.

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
        """Raise `ConfigError` unless the run was made from these texts, for who looks at it again.

        Else users who came later would count as trained on, and others as held out; so they would
        where the config was edited to hold out others.
        """
        check_sources(self.identity, {"data.source": materials.text_digest})
        if not self.report.exists():
            return
        split, data = materials.split, load_report(self.path).data
        now = (split.num_users, len(split.train_examples), len(split.held_out_examples))
        if now != (then := (data.users, data.examples, data.held_out_examples)):
            raise ConfigError(
                f"{self.config}: trains on {now[0]} users and {now[1]} examples and holds out "
                f"{now[2]}, where report.json has {then[0]}, {then[1]} and {then[2]}: put back the "
                "[data] that the run began with"
            )

    def write_ledger(self, ledger: Ledger) -> None:
        """Put the ledger on disk. Comes before anything that a release has touched.

        A seeded run that was taken up makes releases again that the file has; it never shrinks.
        """
        if self.read_ledger().num_releases > ledger.num_releases:
            return
        write_atomically(self.ledger, json.dumps(ledger.to_json(), indent=1))

    def append_metrics(self, line: str) -> None:
        """Add a line, a JSON object, to the metrics."""
        with naming(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())  # no checkpoint outlives the lines before it

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all complete lines; a line cut short by a kill ends the list.

        Raises:
            ConfigError: a line is whole and says nothing of a round: no kill leaves that behind.
        """
        lines: list[dict[str, Any]] = []
        if self.metrics.exists():
            for text in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    line = parse_json(text)
                except ValueError:
                    break
                if not isinstance(line, dict) or not is_count(line.get("round")):
                    raise ConfigError(
                        f"{self.metrics}, line {len(lines) + 1}: expected an object with a round; "
                        "it was damaged, remove it and all that follows"
                    )
                lines.append(line)
        return lines

    def take_up(self, secure: bool) -> ServerState | None:
        """Return the last checkpoint's state, metrics cut back to it; None if there is none.

        Rounds after the checkpoint are done again. With seeded noise they give the same release,
        which is charged once; with secure noise they are new releases, so everything that was
        ever charged stays charged. A damaged checkpoint is passed over: see `newest_whole_state`.

        Raises:
            ConfigError: the ledger has fewer releases than metrics or checkpoints show.
        """
        charged, lines = self.read_ledger(), self.read_metrics()
        state = newest_whole_state(self.checkpoints, charged)
        shown = max((int(line["round"]) for line in lines), default=0)
        if charged.num_releases < shown:
            raise ConfigError(
                f"--resume: {self.metrics} has {shown} releases behind it and {self.ledger.name} "
                f"{charged.num_releases}: charges are missing; put the ledger back that belongs "
                "to it"
            )
        done = [line for line in lines if state and line["round"] <= state.round]
        if state and not _are_rounds(done, state.round):
            raise ConfigError(
                f"--resume: {self.metrics} does not have the rounds 0 to {state.round} in their "
                "order, a line each, which its checkpoint has behind it: it was damaged; put back "
                "a copy of it, or begin another run with another --out"
            )
        write_atomically(
            self.metrics,
            "".join(
                json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in done
            ),
        )
        if state is None or not secure:
            return state
        return replace(state, ledger=charged)

    def read_seconds(self) -> float:
        """Return the time that the run took until it was last saved.

        Raises:
            ConfigError: what is kept is no time.
        """
        path = self.path / "seconds.json"
        if not path.exists():
            return 0.0
        try:
            seconds = read_json(path)
        except (OSError, ValueError):
            seconds = None
        if type(seconds) not in (int, float) or not 0.0 <= seconds < 1e300:
            raise ConfigError(f"{path}: holds no number of seconds; delete it, to count from 0")
        return float(seconds)

    def write_seconds(self, seconds: float) -> None:
        """Keep the time so far; apart from the metrics, which a resumed run repeats to the bit."""
        write_atomically(self.path / "seconds.json", json.dumps(seconds))

    def read_ledger(self) -> Ledger:
        """Return the ledger on disk; empty where there is none yet."""
        if not self.ledger.exists():
            return Ledger()
        with about(f"ledger {self.ledger}: not JSON: "):
            content = read_json(self.ledger)
        return Ledger.from_json(content)


def _are_rounds(lines: list[dict[str, Any]], last: int) -> bool:
    """Whether the lines are those of rounds 0 to `last`, one each: a kill leaves all of them."""
    try:
        rounds = [RoundMetrics.model_validate(line).round for line in lines]
    except ValueError:
        return False
    return rounds == list(range(last + 1))


def _is_content(path: Path) -> bool:
    """Whether a file counts as content: not one that a kill during a first write left behind."""
    half_written = path.name.startswith(".config.toml.") and path.name.endswith(".tmp")
    return not half_written and path.name not in (LOCK, LOG)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value
        rows |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return rows
