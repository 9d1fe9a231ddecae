"""The tutorial does what it says: its files, its commands in their order, and their answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
# A fence's language, the file that it is to be saved as, and what is inside.
_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# A float32 sum in another order moves a loss: this much, and the clock as it likes, nothing else.
_RELATIVE = 0.05


def numbers_and_words(text: str) -> tuple[list[float], list[str]]:
    """Return the numbers of a text, and its words with a # for each number."""
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
    return numbers, _NUMBER.sub("#", text).split()


def assert_as_shown(shown: str, printed: str) -> None:
    """Each line shown is printed, in this order; numbers may differ a little, seconds at all.

    A line that states an ε is exact: accounting is the same on every machine.
    """
    lines = iter(" ".join(line.split()) for line in printed.splitlines())
    for wanted in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        expected, words = numbers_and_words(without_time(wanted))
        for line in lines:
            found, others = numbers_and_words(without_time(line))
            if words == others:
                exact = "ε = " in wanted
                assert line == wanted if exact else found == pytest.approx(expected, _RELATIVE)
                break
        else:
            pytest.fail(f"the tutorial shows {wanted!r}; printed was\n{printed}")


def without_time(line: str) -> str:
    """Leave out seconds, and how wide the table is for them."""
    return re.sub("─+", "─", re.sub(r"(\d+ min )?[\d.]+ s$", "a while", line))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Go through the page in an empty folder; return what it shows beside what was printed."""
    folder, answers, last = tmp_path_factory.mktemp("tutorial"), [], ""
    for language, file, inside in _FENCE.findall(PAGE):
        if file:
            (folder / file).write_text(inside, encoding="utf-8")
        elif language == "sh":
            last = shell(inside, folder)
        elif language == "text":
            answers.append((inside, last))
    return answers


def shell(commands: str, folder: Path) -> str:
    """Run a block as a reader would, the interpreter's scripts first on the path."""
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": scripts, "COLUMNS": "100"}
    command = ["sh", "-e", "-c", commands]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_answers_are_those_that_the_page_shows(printed: list[tuple[str, str]]) -> None:
    assert len(printed) == 4
    for shown, answer in printed:
        assert_as_shown(shown, answer)


def test_a_wrong_answer_would_be_seen(printed: list[tuple[str, str]]) -> None:
    shown, answer = printed[1]
    for wrong in (shown.replace("ε = 7", "ε = 6"), re.sub(r"-> \d", "-> 9", shown)):
        assert wrong != shown
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            assert_as_shown(wrong, answer)


def test_the_page_has_at_most_five_commands() -> None:
    blocks = [inside for language, _, inside in _FENCE.findall(PAGE) if language == "sh"]
    assert 1 <= len([line for block in blocks for line in block.splitlines()]) <= 5


def test_the_page_installs_what_the_makefile_installs() -> None:
    assert "$ make install\n" in PAGE
    command = ["make", "--dry-run", "--always-make", "install"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "pip install --quiet --constraint constraints.txt --editable ." in done.stdout
