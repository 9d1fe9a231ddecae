"""What is installed: a wheel from the sdist, among packages and folders of the same names."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commands import write_config

ROOT = Path(__file__).parents[2]
OTHERS = ("clients", "strategies", "experiments")
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])('.'))"


def build(what: str, source: Path) -> Path:
    """Build in `source`, as pip does once the build requirements are there."""
    command = [sys.executable, "-c", BUILD, what]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return source / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", clone], check=True)
    sdist = build("build_sdist", clone)
    subprocess.run(["tar", "-xf", sdist], cwd=folder, check=True)
    return build("build_wheel", folder / sdist.name.removesuffix(".tar.gz"))


def test_it_holds_all_that_a_run_needs_and_takes_one_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fedsim"}
    tracked = subprocess.run(
        ["git", "ls-files", "fedsim", *OTHERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for path in tracked:
        if path.removeprefix("fedsim/") not in OTHERS and not path.endswith(".md"):
            inside = path if path.startswith("fedsim/") else f"fedsim/{path}"
            assert inside in names


def test_it_runs_beside_packages_and_folders_of_the_same_names(
    wheel: Path, speeches: Path, tmp_path: Path
) -> None:
    """A user's own `clients` is neither hidden by fedsim's nor hides it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    # The dependencies are those of this environment; its own fedsim stands behind the wheel's.
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    work = tmp_path / "work"
    for place in (site, work):
        for name in OTHERS:
            (place / name).mkdir(parents=True, exist_ok=True)
            (place / name / "__init__.py").write_text(f"raise ImportError('a {name} of my own')\n")
    (work / "mine.py").write_text(
        "import sys, fedsim, fedsim.cli.main as m\nprint(m.__file__)\n"
        "print(fedsim.run('mine.toml', 'one').statement)\n"
        "sys.argv[1:] = ['run', 'mine.toml', '--out', 'two']\nm.main()\n"
    )
    write_config(work / "mine.toml", speeches, strategy={"rounds": 1})
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "mine.py"], cwd=work, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert (
        done.stdout.count("Simulated: with secret randomness ") == 2
    )  # from Python and by the command
