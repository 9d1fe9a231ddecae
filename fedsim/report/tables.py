"""A table of texts, as Markdown, as LaTeX and for the terminal, with its numbers as CSV."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich import table as rich_table
from rich.text import Text

from fedsim.report.schema import Privacy
from fedsim.report.wording import NOT_COVERED, NOTHING

_NAME = 22  # columns of a terminal that a name keeps: numbers need the others of 80
# pdflatex knows no Greek letters outside mathematics.
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"{{{sign}}}" for sign in "[*"},  # after a line's end, LaTeX's own signs
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
        **{"ε": r"$\varepsilon$", "δ": r"$\delta$", "σ": r"$\sigma$", "±": r"$\pm$", "−": "$-$"},
        **{"≤": r"$\le$", "≥": r"$\ge$", "∞": r"$\infty$", "–": r"\textendash{}", "…": r"\ldots{}"},
    }
)
UTILITY_NOTE = f"Loss (nats a token), perplexity, top-1 accuracy and gradients: {NOT_COVERED}."


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        heads: one for each column.
        rows: cells, as many as there are heads.
        notes: sentences to read with the table.
        left: columns of text, aligned at the left; the others hold numbers.
        dim: rows in a weaker colour.
        records: the rows as values at full precision, for `csv`.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    left: Collection[int] = (0,)
    dim: Collection[int] = ()
    records: Sequence[Mapping[str, object]] = ()

    def markdown(self) -> str:
        """Return a pipe table, and the notes, if there are any, as a list below it."""
        rule = [":---" if number in self.left else "---:" for number in range(len(self.heads))]
        body = [[escape_markdown(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (self.heads, rule, *body)]
        if self.notes:
            lines += ["", *(f"- {escape_markdown(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return a tabular for the package booktabs, without notes and without empty columns."""
        columns = [
            number
            for number in range(len(self.heads))
            if any(row[number] not in ("", NOTHING) for row in self.rows)
        ]
        head, *body = (
            " & ".join(escape_latex(row[number]) for number in columns) + r" \\"
            for row in (self.heads, *self.rows)
        )
        places = "".join("l" if number in self.left else "r" for number in columns)
        lines = [rf"\begin{{tabular}}{{{places}}}", r"\toprule", head, r"\midrule", *body]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def caption(self) -> str:
        """Return the notes as a paragraph of LaTeX, a line each."""
        return "".join(f"{escape_latex(note).rstrip('.')}.\n" for note in self.notes)

    def csv(self) -> str:
        """Return the records; absent values are empty cells."""
        return to_csv(self.records)

    def rich(self) -> rich_table.Table:
        """Return a table for the terminal, with the notes as its caption."""
        table = rich_table.Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            caption=Text("\n".join(self.notes)),
            caption_justify="left",
        )
        longest = max((len(row[0]) for row in self.rows), default=0)
        for number, head in enumerate(self.heads):
            # Fold: in a narrow terminal the widest cell goes on in the next line, and no digit is
            # lost. (A column with a least width would cut off the last column.)
            left = number in self.left
            table.add_column(
                head,
                justify="left" if left else "right",
                overflow="fold",
                no_wrap=number == 0 and longest <= _NAME,
            )
        for number, row in enumerate(self.rows):
            # Text, not str: a label is data, and "[red]" in it is not a command.
            table.add_row(*map(Text, row), style="dim" if number in self.dim else None)
        return table


def privacy_record(privacy: Privacy | None) -> dict[str, object]:
    """Return the fields of a CSV line that give ε its meaning; None where nothing was promised."""
    names = (
        *("epsilon", "delta", "noise_multiplier", "unit", "relation", "sampler", "accountant"),
        *("noise", "hypothetical"),
    )
    return {name: getattr(privacy, name, None) for name in names}


def to_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Return records as CSV; floats in the shortest form that reads back to the same number."""
    stream = io.StringIO()
    keys = dict.fromkeys(key for record in records for key in record)
    writer = csv.DictWriter(stream, list(keys), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def escape_markdown(text: str) -> str:
    """Keep a name from ending its cell, its line, or being read as HTML."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return escaped.replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")


def escape_latex(text: str) -> str:
    r"""Return a text on one line that LaTeX sets as it stands.

    Examples:
        >>> print(escape_latex("--tune a_b at ε = 2, 50 %"))
        -{}-tune a\_b at $\varepsilon$ = 2, 50 \%
    """
    return " ".join(text.split()).translate(_LATEX).replace("--", "-{}-")  # no dash
