"""Tables fit where they are printed: words of a wide one are not broken in a file or a notebook."""

from __future__ import annotations

import pytest

from fedsim.utils.terminal import table_console


def test_a_pipe_is_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table_console().width == 200
    monkeypatch.setenv("COLUMNS", "90")
    assert table_console().width == 90


def test_a_terminal_is_as_wide_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (71, 20))
    monkeypatch.delenv("TERM", raising=False)
    assert table_console().width == 71
