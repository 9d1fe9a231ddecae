"""A table of texts as Markdown, LaTeX and terminal output, with its numbers as CSV."""

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

_NAME = 22  # maximum width of an unwrapped name, so that numbers fit in 80 columns
# pdflatex accepts Greek letters only in mathematics.
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
UTILITY_NOTE = f"Loss (nats per token), perplexity, top-1 accuracy and gradients: {NOT_COVERED}."


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        heads: one text per column.
        rows: rows of cells, one cell per column.
        notes: sentences to read with the table.
        left: indices of text columns, aligned left; other columns hold numbers.
        records: the rows as values at full precision, for `csv`.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    left: Collection[int] = (0,)
    records: Sequence[Mapping[str, object]] = ()

    def markdown(self) -> str:
        """Return a pipe table, with the notes as a list below it."""
        rule = [":---" if number in self.left else "---:" for number in range(len(self.heads))]
        body = [[escape_markdown(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (self.heads, rule, *body)]
        if self.notes:
            lines += ["", *(f"- {escape_markdown(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return a tabular for the package booktabs, without notes and empty columns."""
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
        """Return the notes as a LaTeX paragraph, one note per line."""
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
            # Fold: in a narrow terminal wide cells continue in the next line, so no digit is lost.
            # (A column with a minimum width would cut off the last column.)
            left = number in self.left
            table.add_column(
                head,
                justify="left" if left else "right",
                overflow="fold",
                no_wrap=number == 0 and longest <= _NAME,
            )
        for row in self.rows:
            # Text, not str: a label is data, so "[red]" in it is not markup.
            table.add_row(*map(Text, row))
        return table


def privacy_record(privacy: Privacy | None) -> dict[str, object]:
    """Return ε and its terms for a CSV line; all values are None without a privacy block."""
    names = (
        *("epsilon", "delta", "noise_multiplier", "unit", "relation", "sampler", "accountant"),
        *("noise", "hypothetical"),
    )
    return {name: getattr(privacy, name, None) for name in names}


def to_csv(records: Sequence[Mapping[str, object]]) -> str:
    """Return records as CSV; floats have the shortest form that reads back exactly."""
    stream = io.StringIO()
    keys = dict.fromkeys(key for record in records for key in record)
    writer = csv.DictWriter(stream, list(keys), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def escape_markdown(text: str) -> str:
    """Escape a name, so that it cannot end its cell or line, or be read as HTML."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return escaped.replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")


def escape_latex(text: str) -> str:
    r"""Escape a text for LaTeX, on one line.

    Examples:
        >>> print(escape_latex("--tune a_b at ε = 2, 50 %"))
        -{}-tune a\_b at $\varepsilon$ = 2, 50 \%
    """
    return " ".join(text.split()).translate(_LATEX).replace("--", "-{}-")  # avoid an en dash
