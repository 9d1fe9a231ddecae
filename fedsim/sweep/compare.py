"""Compare several runs: run each config, over seeds if asked, and read each run folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedsim.errors import ConfigError, RunsFailedError
from fedsim.report.comparison_folder import write_grid
from fedsim.report.grid_result import GridResult
from fedsim.sweep.cells import Cell, expand, parse_variation
from fedsim.sweep.jobs import Runner, one_after_another
from fedsim.sweep.measure import measure, with_budgets
from fedsim.utils.locks import sole_writer


def compare(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    runner: Runner = one_after_another,
) -> GridResult:
    """Finish the runs of all sources; write table, picture and page to `out`.

    Arguments and files are those of `sweep`. Runs that their budget ended early count as finished.

    Raises:
        ConfigError: see `sweep`.
        RunsFailedError: a run failed; the comparison of the other runs is written.
    """
    if isinstance(sources, str | os.PathLike):
        raise ConfigError(f"compare: sources = {str(sources)!r}: give a list")
    paths = [Path(source) for source in sources]
    result = sweep(paths, Path(out), vary=vary, overrides=overrides, runner=runner)
    if failures := [reason for line in result.lines for reason in line.failures]:
        raise RunsFailedError("\n".join(failures))
    return result


def sweep(
    sources: Sequence[Path],
    out: Path,
    *,
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    budgets: Sequence[float] = (),
    tuned: Sequence[str] = (),
    seeds: int | None = None,
    runner: Runner = one_after_another,
) -> GridResult:
    """Run the grid of configs, compare it with finished runs, and write the comparison.

    Finished runs are not repeated; interrupted runs are resumed.

    Args:
        sources: folders of finished runs, and configs, whose runs are in `out/<name>`.
        out: folder of the comparison; `<name>.error.txt` in it is the traceback of a failed run.
        vary: `key.path=v1,v2`; the grid is the product of all variations and configs.
        overrides: `key.path=value`, for all configs.
        budgets: expected gradients per round; the grid has each of them.
        tuned: `key.path=v1,v2`, of which the best value is chosen for each line.
        seeds: number of seeds per line; None for one run per line, unless there are budgets or
            tuned keys.
        runner: function that does the runs; by default one after another.

    Raises:
        ConfigError: no source, an invalid source or config, two equal names, a folder of another
            run, or an `out` that another process uses. All configs are read before the first run
            begins. Also raised if no run could begin.
    """
    if not sources:
        raise ConfigError("compare: name at least one config or run folder")
    folders = [source for source in sources if source.is_dir()]
    if (vary or overrides) and len(folders) == len(sources):
        raise ConfigError("compare: --vary and --set need configs, but all sources are run folders")
    measured = bool(budgets or tuned or seeds is not None)
    if measured and folders:
        raise ConfigError(
            f"compare: {folders[0]}: --budget, --tune and --seeds need configs, not run folders"
        )
    variations = [parse_variation(text) for text in vary]
    arms: list[Cell | Path] = []
    for source in sources:
        arms += [source] if source.is_dir() else expand(source, variations, overrides)
    if budgets:
        arms = [*with_budgets([arm for arm in arms if isinstance(arm, Cell)], budgets)]
    keys = [parse_variation(text, "--tune") for text in tuned]
    with sole_writer(out):
        repeats = seeds or 1 if measured else None
        result = measure(arms, out, keys=keys, seeds=repeats, runner=runner)
        write_grid(result, out)
    return result
