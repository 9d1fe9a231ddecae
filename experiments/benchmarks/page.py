"""Benchmark results as a page and a picture: `python -m experiments.benchmarks.page a.json b.json`.

Each file is what `fedsim bench NAME --json` printed. Writes `docs/benchmarks.md` and
`docs/benchmarks.png`, or `benchmarks.*` in the folder after `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.picture import draw
from fedsim.errors import ConfigError
from fedsim.utils.files import write_atomically

Answer = Mapping[str, Any]
Result = Mapping[str, Any]

_HEAD = """# Benchmarks

Times are medians of repetitions taken in turns in one process; a ratio compares what ran side by
side. This page is written by `python -m experiments.benchmarks.page`; to measure anew:

```
python -m experiments.benchmarks.peers.install
fedsim bench engines --json > docs/benchmarks/engines.json
fedsim bench peers --json > docs/benchmarks/peers.json
python -m experiments.benchmarks.page docs/benchmarks/*.json
```

![Seconds of each engine over the floor's, and of peers over fedsim's](benchmarks.png)
"""
_FLOOR = """## Engines, over the floor

The floor is forward and backward over the same sequences in large batches with a plain sum, by
the products that torch itself takes: what training without privacy costs. Engines are below it
where those leave part of a processor unused (AMD's with AVX-512: [models.md](models.md)). `uls`:
one clipped mean gradient a user, by examples a user; `els`: one clipped gradient an example;
`fedavg`: a clipped difference after four local steps; `uls-ragged`: real users, the floor over
whole examples of as many tokens.
"""
_PEERS = """## Peers

How many times longer a peer takes than `fedsim`'s own choice of engine on the same work. pfl's
clipped sums equal ours; Opacus gets networks rewritten to what it supports, and its sums equal a
plain loop over them.
"""
_MEMORY = "## Peak memory\n\nOf a process that computes one step, over the non-private one's.\n"
_GPU = "## GPU\n"
_OTHERS = "## Other benchmarks\n"


def write(files: Sequence[Path], out: Path) -> None:
    """Write `benchmarks.md` and `benchmarks.png` into `out`.

    Raises:
        ConfigError: a file is not the answer of `fedsim bench --json`.
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
    """Return the page's Markdown; a part without rows is left out."""
    rows: list[Result] = [row for answer in answers for row in answer["rows"]]
    engines = [row for row in rows if row["benchmark"] == "engines"]
    parts = [
        (_FLOOR, over_floor([row for row in engines if not row["case"].startswith("gpu/")])),
        (_PEERS, beside_peers([row for row in rows if row["benchmark"] == "peers"])),
        (_MEMORY, memory([row for row in engines if row["case"].startswith("memory/")])),
        (_GPU, gpu([row for row in engines if row["case"].startswith("gpu/")])),
        (_OTHERS, others([row for row in rows if row["benchmark"] not in ("engines", "peers")])),
    ]
    shown = [f"{text}\n{table}" for text, table in parts if table]
    return "\n".join([_HEAD, *shown, _measured_on(answers)])


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, or nothing without lines."""
    if not lines:
        return ""
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, rule, *lines))


def over_floor(rows: Sequence[Result]) -> str:
    """Return a line a case: ratios to the floor by engine, the floor's seconds, auto's tokens."""
    ratios = {
        (row["case"], row["engine"]): row["ratio_to_floor"]
        for row in rows
        if "ratio_to_floor" in row
    }
    seconds = {row["case"]: row["seconds"] for row in rows if row["engine"] == "floor"}
    tokens = {
        row["case"]: row["details"]["tokens_per_second"]
        for row in rows
        if row["engine"] == "auto" and (row["case"], "auto") in ratios
    }
    engines = [name for name in dict.fromkeys(name for _, name in ratios) if name != "floor"]
    lines = [
        [
            case,
            f"{floor:.3g}",
            *(_number(ratios.get((case, engine)), ".2f") for engine in engines),
            _number(tokens.get(case), ",.0f"),
        ]
        for case, floor in seconds.items()
    ]
    return table(["case", "floor, s", *engines, "tokens/s, auto"], lines)


def beside_peers(rows: Sequence[Result]) -> str:
    """Return a line for each peer's row."""
    lines = [
        [row["case"], row["engine"], f"{row['seconds']:.3g}", f"{row['ratio']:.2f}"]
        for row in rows
        if row.get("ratio") is not None
    ]
    return table(["case", "peer", "seconds", "× fedsim auto"], lines)


def memory(rows: Sequence[Result]) -> str:
    """Return a line for each way to take a step."""
    lines = [
        [
            row["case"],
            row["engine"],
            f"{row['details']['peak_bytes'] / 2**30:.2f}",
            f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    return table(["case", "step", "GiB", "ratio"], lines)


def gpu(rows: Sequence[Result]) -> str:
    """Return a line for each row; "not measured" where there was no GPU."""
    lines = []
    for row in rows:
        details = row["details"]
        if "not_measured" in details:
            said = f"not measured: {details['not_measured']}"
            lines.append([row["case"], row["engine"], said, "–", "–", "–"])
            continue
        lines.append(
            [
                row["case"],
                row["engine"],
                f"{row['ratio_to_floor']:.3f}",
                f"{details['users_per_second']:.1f}",
                f"{details['tokens_per_second']:,.0f}",
                f"{details['teraflops_per_second']:.1f}",
            ]
        )
    return table(["case", "engine", "over the floor", "users/s", "tokens/s", "TFLOP/s"], lines)


def others(rows: Sequence[Result]) -> str:
    """Return a line for each row of any other benchmark."""
    lines = [
        [
            f"{row['benchmark']}: {row['case']}",
            row.get("engine", "–"),
            _number(row["seconds"], ".3g"),
            _number(row.get("ratio"), ".3g"),
        ]
        for row in rows
    ]
    return table(["case", "by", "seconds", "ratio"], lines)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _measured_on(answers: Sequence[Answer]) -> str:
    """Return what was measured when, where and with which versions."""
    lines = []
    for answer in answers:
        names = ", ".join(dict.fromkeys(row["benchmark"] for row in answer["rows"]))
        facts = {**answer["machine"], **answer["versions"]}
        lines.append(f"- {names}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    return "## Measured on\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Write the page from the files on the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.page")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    chosen = parser.parse_args()
    try:
        write(chosen.files, chosen.out)
    except ConfigError as error:
        parser.error(str(error))  # exit status 2


if __name__ == "__main__":
    main()
