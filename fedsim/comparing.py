"""Several runs side by side: run what is a config, read what is a run folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fedsim.config import Config, load_config
from fedsim.errors import ConfigError
from fedsim.launch import run
from fedsim.report.comparison import Comparison
from fedsim.report.comparison_folder import write_comparison
from fedsim.run_folder import RunFolder

log = logging.getLogger("fedsim")


def compare(sources: Sequence[Path], out: Path) -> Comparison:
    """Bring every source to a finished run and write table, picture and page into `out`.

    Args:
        sources: run folders, taken as they are, and configs, each run in `out/<its name>`; one
            that is finished there is not run again, one that was cut off is taken up.
        out: the comparison's folder.

    Raises:
        ConfigError: no source, two of the same name, a source that is neither, a wrong config.
            All configs are read before the first is run.
    """
    if not sources:
        raise ConfigError("compare: name at least one config or run folder")
    jobs = [(source, None if source.is_dir() else load_config(source)) for source in sources]
    run_dirs = [source if config is None else out / source.stem for source, config in jobs]
    if len(set(run_dirs)) < len(run_dirs):
        raise ConfigError(
            f"compare: two sources would share a folder: {sorted(map(str, run_dirs))}"
        )
    for source, run_dir in zip(sources, run_dirs, strict=True):
        if run_dir is source and not RunFolder(run_dir).report.exists():
            raise ConfigError(f"compare: {run_dir} is no finished run (no report.json)")
    for (_, config), run_dir in zip(jobs, run_dirs, strict=True):
        if config is not None:
            _finish(config, run_dir)
    return write_comparison(run_dirs, out)


def _finish(config: Config, run_dir: Path) -> None:
    folder = RunFolder(run_dir)
    if folder.report.exists():
        folder.check_resumable(config)
        log.info("%s: finished before, not run again", run_dir.name)
        return
    run(config, run_dir, resume=folder.config.exists())
