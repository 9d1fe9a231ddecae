"""The shape of the house: who may import whom, what is public, how long a file may be."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedsim
from fedsim.round import run_round

ROOT = Path(__file__).parent.parent
PACKAGES = ("fedsim", "strategies", "clients", "experiments")
FORBIDDEN = {
    "fedsim": {"strategies", "clients", "experiments", "tests"},
    "strategies": {"clients", "experiments", "tests"},
    "clients": {"strategies", "experiments", "tests"},
    "experiments": {"tests"},
}


def imported(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_inwards(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in imported(path)
        if module.split(".")[0] in FORBIDDEN[package]
    }
    assert not wrong


def test_only_grids_touch_the_inside_of_flower_and_ray() -> None:
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    measured = {"flwr.simulation", "flwr.serverapp.strategy"}  # a benchmark's peer
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "grids" not in path.parts
        for module in imported(path)
        if "benchmarks" not in path.parts or module not in measured
        if module.split(".")[0] == "ray" or (module.startswith("flwr") and module not in public)
    }
    assert not wrong


def test_the_client_app_is_light_to_import() -> None:
    """Flower imports it beside the ServerApp's thread; transformers cannot be imported twice."""
    code = "import clients.app, sys; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_export_list() -> None:
    assert set(fedsim.__all__) == {
        "Budget",
        "BudgetSpentError",
        "Config",
        "ConfigError",
        "FixedDenominator",
        "FixedSizeSampling",
        "FlatClip",
        "LanguageModel",
        "Ledger",
        "Materials",
        "ModelConfig",
        "PerLayerClip",
        "PoissonSampling",
        "Relation",
        "RoundCost",
        "RoundMetrics",
        "RoundPlan",
        "RunReport",
        "ServerOptimizer",
        "ServerState",
        "ShuffledSampling",
        "TaskSpec",
        "Tracker",
        "TruncatedPoissonSampling",
        "build_plan",
        "calibrate_noise_multiplier",
        "compare",
        "delta",
        "epsilon",
        "layer_of",
        "load_config",
        "load_materials",
        "load_metrics",
        "load_report",
        "parse_config",
        "run",
        "run_round",
        "train",
    }
    assert all(hasattr(fedsim, name) for name in fedsim.__all__)


def test_run_round_fits_a_screen_and_never_asks_for_the_strategy() -> None:
    source = inspect.getsource(run_round)
    assert len(source.splitlines()) <= 45
    assert ".strategy" not in source
    assert ".unit" not in source
    assert " if " not in source.replace("if total.num_units", "")


@pytest.mark.parametrize("package", (*PACKAGES, "tests"))
def test_files_are_short(package: str) -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in (ROOT / package).rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert not long


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_has_a_line_for_every_file(package: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py" and f"  {path.relative_to(ROOT / package)} " not in readme
    ]
    assert not missing


def test_the_privacy_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    defined = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= defined


def test_help_and_accounting_do_not_wait_for_torch() -> None:
    """Else every command, and every question to the accountant, would take seconds to begin."""
    code = "import sys, fedsim.cli.main; print({'torch', 'flwr', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
