"""The structure: which package imports which, no circles, what is public, sizes of folders."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedsim
from fedsim.round import run_round

ROOT = Path(__file__).parent.parent
PACKAGES = ("fedsim", "strategies", "clients", "experiments")
LINKED = PACKAGES[1:]  # installed, and imported, as fedsim.strategies and so on
FORBIDDEN = {
    "fedsim": {"strategies", "clients", "experiments", "tests"},
    "strategies": {"clients", "experiments", "tests"},
    "clients": {"strategies", "experiments", "tests"},
    "experiments": {"tests"},
}


@cache
def imported(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


def top(module: str) -> str:
    """The folder at the top of the repository that holds a module."""
    first, _, rest = module.partition(".")
    inner = rest.partition(".")[0]
    return inner if first == "fedsim" and inner in LINKED else first


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_inwards(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in imported(path)
        if top(module) in FORBIDDEN[package]
    }
    assert not wrong


def test_no_name_but_fedsim_is_taken_in_an_environment() -> None:
    """A user's own folder or package called `clients` neither hides ours nor is hidden by it."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for package in (*PACKAGES, "tests")
        for path in (ROOT / package).rglob("*.py")
        for module in imported(path)
        if module.split(".")[0] in LINKED
    }
    assert not wrong
    assert {(ROOT / "fedsim" / name).resolve() for name in LINKED} == {
        ROOT / name for name in LINKED
    }


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


def test_the_public_names_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "api" / "README.md").read_text(encoding="utf-8")
    assert set(fedsim.__all__) == set(re.findall(r"\[`(\w+)`\]", page))
    assert all(hasattr(fedsim, name) for name in fedsim.__all__)


def test_run_round_fits_a_screen_and_never_asks_for_the_strategy() -> None:
    source = inspect.getsource(run_round)
    assert len(source.splitlines()) <= 45
    assert ".strategy" not in source
    assert ".unit" not in source
    assert " if " not in source.replace("if total.num_units", "")


def module_of(path: Path) -> str:
    """The name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    inside = ("fedsim", *parts) if parts[0] in LINKED else parts
    return ".".join(inside).removesuffix(".__init__")


MODULES = {
    module_of(path): path
    for package in (*PACKAGES, "tests")
    for path in (ROOT / package).rglob("*.py")
    if "third_party" not in path.parts
}


@cache
def imported_at_once(path: Path) -> set[str]:
    """Our modules that a file imports when it is imported itself."""
    modules: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                modules.add(inner if inner in MODULES else node.module)
    return modules & set(MODULES)


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {name: imported_at_once(path) for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the circle


def test_a_worker_does_not_wait_for_the_accounting() -> None:
    """Only the server accounts and draws; each worker, a process of its own, would load it too."""
    left = [name for name in MODULES if name.startswith("fedsim.clients.")]
    left.remove("fedsim.clients.personalisation")  # an analysis, which the server makes
    reached: set[str] = set()
    while left:
        if (name := left.pop()) not in reached:
            reached.add(name)
            left += imported_at_once(MODULES[name])
    assert {"fedsim.clients.app", "fedsim.materials", "fedsim.sampling"} <= reached
    slow = re.compile(r"^(from|import) (dp_accounting|scipy\.)|^from scipy import", re.MULTILINE)
    assert not {name for name in reached if slow.search(MODULES[name].read_text(encoding="utf-8"))}


@pytest.mark.parametrize("package", ["fedsim.clients", "fedsim.data"])
def test_no_folders_of_a_package_import_each_other_in_a_circle(package: str) -> None:
    """A folder and the files of its parent count as two: one of them stands below the other."""
    folders: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if f"{name}.".startswith(f"{package}.") and path.name != "__init__.py":
            inner = {
                MODULES[other].parent
                for other in imported_at_once(path)
                if f"{other}.".startswith(f"{package}.")
            }
            folders.setdefault(str(path.parent), set()).update(map(str, inner - {path.parent}))
    assert len(folders) > 3
    TopologicalSorter(folders).prepare()  # a CycleError names the circle


WITH_FOLDERS = {path.parent.parent for path in MODULES.values() if path.name == "__init__.py"}


def room(path: Path) -> str:
    """The folder of a file; the file itself where the folder holds others."""
    place = path if path.parent in WITH_FOLDERS else path.parent
    return str(place.relative_to(ROOT))


def test_no_rooms_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES.values():
        if path.name != "__init__.py" and not path.is_relative_to(ROOT / "tests"):
            needed = {room(MODULES[module]) for module in imported(path) & set(MODULES)}
            graph.setdefault(room(path), set()).update(needed - {room(path)})
    TopologicalSorter(graph).prepare()  # a CycleError names the circle


FOLDERS = sorted({path.parent for path in MODULES.values()} - {ROOT / "tests"})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_is_a_room(folder: Path) -> None:
    """It says what it is for, and holds no more files than one can look over."""
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    in_tests = folder.is_relative_to(ROOT / "tests")
    assert len(files) <= (20 if in_tests else 18)
    if not in_tests:
        text = (folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text))


def test_no_three_files_have_one_name() -> None:
    names = Counter(
        path.name for path in MODULES.values() if path.parts[len(ROOT.parts)] != "tests"
    )
    often = {name for name, count in names.items() if count > 2}
    assert often == {"__init__.py"}


def test_the_readme_is_short_and_names_every_package() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert all(f"`{package}/" in readme for package in (*PACKAGES, "tests"))


def test_the_privacy_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    defined = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert named <= defined


def test_help_and_accounting_do_not_wait_for_torch() -> None:
    """Else every command, and every question to the accountant, would take seconds to begin."""
    heavy = ["torch", "flwr", "datasets", "dp_accounting", "scipy.stats"]
    code = f"import sys, fedsim.cli.main; print({{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_run_starts_without_the_optional_packages_and_the_client_app_is_light() -> None:
    """Flower imports it beside the ServerApp's thread; transformers cannot be imported twice."""
    extras = ["tensorboard", "wandb", "mlflow", "ray", "gguf", "bitsandbytes"]
    code = f"import sys; sys.modules.update(dict.fromkeys({extras}))\n"
    code += "import fedsim.clients.app\nassert 'transformers' not in sys.modules\n"
    code += "import fedsim.runner.launch"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
