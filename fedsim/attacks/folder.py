"""Write the files of `fedsim attack`: attack.json, attack.html and the picture."""

from __future__ import annotations

from pathlib import Path

from fedsim.accounting.rounding import text_up
from fedsim.attacks.charts import attack_chart, attack_panels
from fedsim.report.attack_report import AttackReport
from fedsim.report.drawing import pictures
from fedsim.report.html import render_page
from fedsim.utils.files import write_atomically


def write_attack(report: AttackReport, out: Path) -> None:
    """Write the files to `out`, after all of them are rendered."""
    contents: dict[str, bytes | str] = {
        "attack.json": report.model_dump_json(indent=2) + "\n",
        "attack.html": render_attack(report),
        **pictures("attack", attack_chart(report)),
    }
    for name, content in contents.items():
        write_atomically(out / name, content)


def render_attack(report: AttackReport) -> str:
    """Return the page: the run's guarantee, the attack's results, plots and all numbers."""
    allowed = None if report.bound.auroc is None else text_up(report.bound.auroc, 3)
    panels = attack_panels(report)
    return render_page("attack.html.jinja", report=report, allowed=allowed, panels=panels)
