"""A finished run, for use in Python and notebooks."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.language_model import module_of
from fedsim.report.html import HTML_FILE
from fedsim.report.schema import RoundMetrics, RunReport, load_metrics, load_report
from fedsim.report.wording import outcome_text
from fedsim.runner.folder import RunFolder
from fedsim.utils.terminal import quietly

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

_HEIGHT = 720  # pixels of the page in a notebook


@dataclass(frozen=True)
class Run(os.PathLike[str]):
    """A run folder; each file is read at its first use.

    A `Run` can be used as a path.

    Attributes:
        path: the run folder.
    """

    path: Path

    def __fspath__(self) -> str:
        """Return the folder's path."""
        return str(self.path)

    @cached_property
    def report(self) -> RunReport:
        """The content of `report.json`."""
        return load_report(self.path)

    @cached_property
    def metrics(self) -> tuple[RoundMetrics, ...]:
        """The lines of `metrics.jsonl`, one per round."""
        return load_metrics(self.path)

    @property
    def statement(self) -> str:
        """The privacy guarantee in words, with earlier training of the start that ε leaves out."""
        return self.report.privacy.promise

    @property
    def epsilon(self) -> float | None:
        """The ε of `statement`; None without a finite guarantee."""
        return self.report.privacy.epsilon

    @cached_property
    def model(self) -> nn.Module:
        """The trained network, of transformers' class if transformers has one."""
        from fedsim.materials import load_model  # noqa: PLC0415  (slow)

        folder = RunFolder(self.path)
        config = folder.read_config()
        opened = load_model(folder.served(config), sequence_length=config.data.sequence_length)
        return module_of(opened)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that `model` was trained with."""
        from transformers import AutoTokenizer  # noqa: PLC0415  (slow)

        folder = RunFolder(self.path)
        saved = folder.model if folder.model.exists() else folder.adapter
        with quietly():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(saved)
        return tokenizer

    @property
    def adapter(self) -> Path | None:
        """The folder for `peft.PeftModel.from_pretrained`; None if no adapter was trained."""
        folder = RunFolder(self.path).adapter
        return folder if folder.exists() else None

    def show(self) -> None:
        """Show the report's page in a notebook; elsewhere print what `fedsim run` prints."""
        if _in_notebook():
            from IPython.display import HTML, display  # noqa: PLC0415  (a notebook has it)

            display(HTML(self._repr_html_()))
        else:
            print(outcome_text(self.path, self.report))  # noqa: T201

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        page = html.escape((self.path / HTML_FILE).read_text(encoding="utf-8"))
        style = f"width:100%;height:{_HEIGHT}px;border:0"
        frame = f'<iframe srcdoc="{page}" style="{style}" title="{self.path.name}"></iframe>'
        return f"<div>{frame}</div>"  # IPython warns about a bare iframe without an address


def _in_notebook() -> bool:
    try:
        from IPython import get_ipython  # noqa: PLC0415
    except ModuleNotFoundError:
        return False
    shell: Any = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
