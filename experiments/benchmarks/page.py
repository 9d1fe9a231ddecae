"""Write the benchmark page and picture: `python -m fedsim.experiments.benchmarks.page JSON…`.

Each file is the output of `fedsim bench NAME --json` or of `fedsim.experiments.benchmarks.gpu`.
Writes `docs/benchmarks.md` and `docs/benchmarks.png`, or `benchmarks.*` in the folder after
`--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError
from fedsim.experiments.benchmarks.picture import draw
from fedsim.utils.files import write_atomically

Answer = Mapping[str, Any]
Result = Mapping[str, Any]
Columns = Mapping[str, Callable[[Result], str]]

_HEAD = """# Benchmarks

Times are medians of repetitions. A ratio compares work that ran in turns in one process.
`python -m fedsim.experiments.benchmarks.page docs/benchmarks/*.json` writes this page. To measure
again:

```
python -m fedsim.experiments.benchmarks.peers.install
fedsim bench engines --json > docs/benchmarks/engines.json
fedsim bench peers --json > docs/benchmarks/peers.json
```

![Seconds of each engine over the floor's, and of peers over fedsim's](benchmarks.png)
"""
_FLOOR = """## Engines, over the floor

The floor is the cost of training without privacy: forward and backward over the same sequences in
large batches, with a plain sum. `uls`: one clipped mean gradient per user, by examples per user.
`els`: one clipped gradient per example. `fedavg`: a clipped difference after four local steps of
one example. `uls-ragged`: real users. Other processors give other ratios ([models.md](models.md)).

Floor and `auto` are repeated 5 to 15 times, the others one to three times; for these, differences
of a fifth are not significant. Where `auto` is not `loop`, it chose `materialised`, or `stacked`
for `fedavg`. The machines are named at the end.

The strong floor is a step of a good script without privacy: `sdpa` attention, `torch.compile` if it
is faster, fused AdamW, and bfloat16 on a GPU. A round is `run_round` in one process.
"""
_PEERS = """## Peers

A peer's time over the time of fedsim's `auto` engine, on the same work. pfl's clipped sums equal
ours. For Opacus, networks are rewritten with layers that it supports.
"""
_MEMORY = "## Peak memory\n\nPeak of a process that computes one step, over the non-private peak.\n"
_GPU = """## GPU

`python -m fedsim.experiments.benchmarks.gpu --out docs/benchmarks/gpu.json` checks and measures in
bfloat16; `--quick` uses tiny shapes, also on a CPU. Slices can be named (`350m`, `gpt2`, `fedavg`,
`rounds`, `workers`, `llama-8b`, `parity`, `tests`, `resume`). Each ends after eight minutes and
keeps the rows of others; `--list` says which are not measured. The column "of arithmetic" is tokens
a second over those of 40 % of the GPU's peak.
"""
_SERVER = """## The server's part of a round

Times are over one pass that copies the parameters and adds to the copy. Estimate and noise are over
the same number of torch's float32 normals on all cores (ours are float64, rounded to a grid). The
peak counts float32 copies of the parameters.
"""
_WORK = """## Counted work of large models

`fedsim bench work --json > docs/benchmarks/work.json` counts, without computing, the work of `auto`
with all parameters on a CPU. Arithmetic is over that without privacy. A pass reads or writes the
bytes of one float32 copy of the parameters: gradients, sums and casts, but not weights in products.
Units of a chunk share the work done once per chunk. The work in the last column is done once for up
to 128 units.
"""
_OTHERS = "## Other benchmarks\n"
_MACHINE = ("date", "processor", "vectors", "cpus", "gpu", "torch")


def write(files: Sequence[Path], out: Path) -> None:
    """Write `benchmarks.md` and `benchmarks.png` into `out`.

    Raises:
        ConfigError: a file is not the output of `fedsim bench --json`.
    """
    answers = [_read(path) for path in files]
    rows = [row for answer in answers for row in answer["rows"]]
    write_atomically(out / "benchmarks.png", draw(rows))
    write_atomically(out / "benchmarks.md", page(answers))


def _read(path: Path) -> Answer:
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))
        _ = answer["machine"], answer["versions"], answer["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: not what `fedsim bench NAME --json` prints ({type(error).__name__}: {error})"
        ) from None
    return dict(answer)


def page(answers: Sequence[Answer]) -> str:
    """Return the page's Markdown, without parts that have no rows."""
    rows: list[Result] = [row for answer in answers for row in answer["rows"]]
    engines = [row for row in rows if row["benchmark"] == "engines"]
    peers = [row for row in rows if row["benchmark"] == "peers" and row.get("ratio") is not None]
    server = [row for row in rows if row["benchmark"] == "server"]
    # One row summarises all comparisons of engines; the JSON has each of them.
    gpu = [r for r in rows if r["benchmark"] == "gpu" and not r["case"].startswith("parity: ")]
    work = [row for row in rows if row["benchmark"] == "work"]
    shown_above = ("engines", "peers", "server", "gpu", "work")
    others = [row for row in rows if row["benchmark"] not in shown_above]
    parts = [
        (_FLOOR, over_floor(engines)),
        (_PEERS, table(peers, _PEER_COLUMNS)),
        (_MEMORY, table([r for r in engines if r["case"].startswith("memory/")], _MEMORY_COLUMNS)),
        (_GPU, table(gpu, _GPU_COLUMNS) or "Not measured so far.\n"),
        (_SERVER, table(server, _SERVER_COLUMNS)),
        (_WORK, table(work, _WORK_COLUMNS)),
        (_OTHERS, table(others, _OTHER_COLUMNS)),
    ]
    shown = [f"{text}\n{lines}" for text, lines in parts if lines]
    return "\n".join([_HEAD, *shown, _measured_on(answers)])


def table(rows: Sequence[Any], columns: Mapping[str, Callable[[Any], str]]) -> str:
    """Return a Markdown table with a column for each head, or "" without rows."""
    if not rows:
        return ""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in ([*columns], rule, *lines))


def over_floor(rows: Sequence[Result]) -> str:
    """Return one line per case: ratios to the floor by engine, other ratios, tokens of auto."""
    by_case: dict[str, dict[str, Result]] = {}
    for row in rows:
        if "ratio_to_floor" in row or row["engine"] == "strong floor":
            by_case.setdefault(row["case"], {})[row["engine"]] = row
    engines = dict.fromkeys(engine for case in by_case.values() for engine in case)
    columns: dict[str, Callable[[str], str]] = {
        "case": str,
        "floor, s": lambda case: f"{by_case[case]['floor']['seconds']:.3g}",
    }
    for engine in engines:
        if engine not in ("floor", "strong floor", "whole round"):
            columns[engine] = lambda case, engine=engine: _number(  # type: ignore[misc]
                by_case[case].get(engine, {}).get("ratio_to_floor"), ".2f"
            )
    columns["floor / strong"] = lambda case: _number(
        by_case[case].get("strong floor", {}).get("ratio"), ".2f"
    )
    columns["round / gradients"] = lambda case: _number(
        by_case[case].get("whole round", {}).get("ratio_to_floor"), ".2f"
    )
    columns["tokens/s, auto"] = lambda case: _number(
        by_case[case].get("auto", {"details": {}})["details"].get("tokens_per_second"), ",.0f"
    )
    return table([*by_case], columns)


def _detail(key: str, form: str) -> Callable[[Result], str]:
    """Return a column with a detail of rows, "–" if it is missing."""
    return lambda row: _number(row["details"].get(key), form)


def _result(row: Result) -> str:
    """Return the result of a check: its first line, or its distance from the reference."""
    details = row["details"]
    if "relative_difference" in details and "result" not in details:
        return f"{details['relative_difference']:.1e} away"
    lines = str(details.get("result", "–")).splitlines() or [""]
    return lines[0].replace("|", "\\|")


_CASE = itemgetter("case")
_ENGINE = itemgetter("engine")
_PEER_COLUMNS: Columns = {
    "case": _CASE,
    "peer": _ENGINE,
    "seconds": lambda row: f"{row['seconds']:.3g}",
    "× fedsim auto": lambda row: f"{row['ratio']:.2f}",
}
_MEMORY_COLUMNS: Columns = {
    "case": _CASE,
    "step": _ENGINE,
    "GiB": lambda row: f"{row['details']['peak_bytes'] / 2**30:.2f}",
    "ratio": lambda row: f"{row['ratio']:.2f}",
}
_GPU_COLUMNS: Columns = {
    "case": _CASE,
    "by": lambda row: row.get("engine", "–"),
    "seconds": lambda row: _number(row["seconds"], ".3g"),
    "ratio": lambda row: _number(row.get("ratio_to_floor", row.get("ratio")), ".3f"),
    "goal": _detail("goal", ".2f"),
    "tokens/s": _detail("tokens_per_second", ",.0f"),
    "of arithmetic": _detail("of_arithmetic", ".2f"),
    "peak, GiB": lambda row: _number(_gib(row["details"].get("peak_bytes")), ".2f"),
    "result": _result,
}
_SERVER_COLUMNS: Columns = {
    "case": _CASE,
    "seconds": lambda row: _number(row["seconds"], ".3g"),
    "over": lambda row: str(row["details"].get("floor", "–")),
    "ratio": lambda row: _number(row.get("ratio_to_floor"), ".2f"),
    "copies at the peak": _detail("float32_copies", ".1f"),
}
_WORK_COLUMNS: Columns = {
    "case": _CASE,
    "by": _ENGINE,
    "arithmetic": lambda row: f"{row['ratio']:.3f}",
    "passes a unit": _detail("passes", ".2f"),
    "passes a call": _detail("passes_of_a_call", ".1f"),
}
_OTHER_COLUMNS: Columns = {
    "case": lambda row: f"{row['benchmark']}: {row['case']}",
    "by": lambda row: row.get("engine", "–"),
    "seconds": lambda row: _number(row["seconds"], ".3g"),
    "ratio": lambda row: _number(row.get("ratio"), ".3g"),
}


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / 2**30


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _measured_on(answers: Sequence[Answer]) -> str:
    """Return date, machine and torch of every measurement."""
    lines = []
    for answer in answers:
        names = ", ".join(dict.fromkeys(row["benchmark"] for row in answer["rows"]))
        facts = {**answer["machine"], **answer["versions"]}
        facts = {key: facts[key] for key in _MACHINE if facts.get(key) is not None}
        lines.append(f"- {names}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    return "## Measured on\n\nThe JSON files name all versions.\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Write the page from the files on the command line."""
    parser = argparse.ArgumentParser(prog="python -m fedsim.experiments.benchmarks.page")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    chosen = parser.parse_args()
    try:
        write(chosen.files, chosen.out)
    except ConfigError as error:
        parser.error(str(error))  # exit status 2


if __name__ == "__main__":
    main()
