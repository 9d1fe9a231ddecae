"""`fedsim`: the commands, and the exit statuses of their errors."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

from fedsim.utils.machine import BRIEF_WAITING, collect_garbage_rarely

# Set before flwr, transformers and datasets are imported: they then send no telemetry.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
if "OMP_WAIT_POLICY" not in os.environ:
    for _name, _value in BRIEF_WAITING.items():
        os.environ.setdefault(_name, _value)
# Torch asks for huge pages: a fresh copy of a large model takes half the time.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import typer
from click.exceptions import Abort, ClickException, Exit

from fedsim.cli.account import app as account_app
from fedsim.cli.attack import attack_command
from fedsim.cli.audit import audit_command
from fedsim.cli.bench import bench_command
from fedsim.cli.compare import SeveralNumbers, compare_command
from fedsim.cli.data import app as data_app
from fedsim.cli.evaluate import evaluate_command
from fedsim.cli.flower import flower_command
from fedsim.cli.ledger import compose_command, ledger_command, verify_command
from fedsim.cli.output import ConfigFile, Overrides, Resume, RunOut, say_what_came_out
from fedsim.cli.plan import plan_command
from fedsim.cli.push import push_command
from fedsim.cli.study import study_command
from fedsim.cli.tune import tune_command
from fedsim.errors import (
    BudgetSpentError,
    ConfigError,
    DivergedError,
    HaltedError,
    RunsFailedError,
    SavedModelError,
)
from fedsim.utils.files import disk_message
from fedsim.utils.interrupts import stop_as_ctrl_c_does

app = typer.Typer(
    name="fedsim",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests already
)
INTERRUPTED = 130
_ENDINGS: dict[type[Exception], tuple[str, int]] = {  # first word of the message, exit status
    ConfigError: ("Error", 2),
    BudgetSpentError: ("Stopped", 3),
    HaltedError: ("Halted", 1),
    DivergedError: ("Diverged", 1),
    SavedModelError: ("Error", 1),
    RunsFailedError: ("Error", 1),
}


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("fedsim-dp"))
        raise typer.Exit


@app.callback()
def callback(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fine-tune language models with user-level differential privacy, and see what it costs."""


def run_command(
    config: ConfigFile,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
) -> None:
    """Train a model as CONFIG says; write a run folder with the model and a report."""
    from fedsim.config import load_config

    loaded, folder = load_config(config, overrides or []), out or Path("runs") / config.stem
    # This import takes seconds; the config is checked first, so that a typing error shows at once.
    from fedsim.runner.launch import run

    if resume and not folder.exists():  # a mistyped path, or a run killed before its first write
        typer.echo(f"--resume: there is no run in {folder} yet; a new one begins", err=True)
    try:
        run(loaded, folder, resume=resume)
    except (BudgetSpentError, HaltedError):
        if (folder / "report.json").exists():  # the run ended early, with a model and a guarantee
            say_what_came_out(folder)
        raise
    except KeyboardInterrupt:
        options = "the same config and --set, --resume and --out"
        typer.echo(f"Stopped; to continue the run, give {options} {folder}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    say_what_came_out(folder)


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the runs and their comparison.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train with and without privacy on Shakespeare's speakers, and attack both models."""
    from fedsim.registry import resolve

    resolve("demos", "demo", "demo")(out)


# `fedsim --help` lists the commands in this order, the order of use.
app.command(name="demo")(demo_command)
app.command(name="plan")(plan_command)
app.command(name="run")(run_command)
app.command(name="evaluate")(evaluate_command)
app.command(name="compare", cls=SeveralNumbers)(compare_command)
app.command(name="tune")(tune_command)
app.command(name="attack")(attack_command)
app.command(name="audit")(audit_command)
app.command(name="push")(push_command)
app.command(name="study", cls=SeveralNumbers)(study_command)
app.command(name="bench")(bench_command)
app.command(name="flower")(flower_command)
app.add_typer(data_app, name="data")
account_app.command(name="ledger")(ledger_command)
account_app.command(name="compose")(compose_command)
account_app.command(name="verify")(verify_command)
app.add_typer(account_app, name="account")


class _ToStandardError(logging.Handler):
    """Writes log lines to the current `sys.stderr`, which a progress bar replaces while it shows.

    Each warning is shown once: the candidates of a search all warn about the same data.
    """

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log line, unless it repeats a warning."""
        words = self.format(record)
        if record.levelno != logging.WARNING or words not in self._warned:
            self._warned |= {words}
            print(words, file=sys.stderr, flush=True)  # noqa: T201


def main() -> None:
    """Run a command and turn its errors into exit statuses."""
    for stream in (sys.stdout, sys.stderr):  # an encoding without ε must not end a run
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_ToStandardError()])
    logging.getLogger("fedsim").setLevel(logging.INFO)
    collect_garbage_rarely()
    stop_as_ctrl_c_does()
    try:
        status = app(standalone_mode=False)
    except ClickException as error:
        error.show()
        status = error.exit_code
    except Exit as error:
        status = error.exit_code
    except (Abort, KeyboardInterrupt):  # Ctrl-C during a command, or before one started
        status = INTERRUPTED
    except tuple(_ENDINGS) as error:
        word, status = next(end for kind, end in _ENDINGS.items() if isinstance(error, kind))
        typer.echo(f"{word}: {error}", err=True)
    except Exception as error:
        if (message := disk_message(error)) is None:
            raise
        typer.echo(f"Error: {message}", err=True)
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
