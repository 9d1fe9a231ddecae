"""What is given away: the files of one folder, with a promise that holds, and nothing else."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import ModelConfig
from fedsim.materials import load_model
from fedsim.runner.folder import RunFolder
from fedsim.runner.push import about_base
from tests.helpers.commands import fedsim, fedsim_ok, write_config

ENDPOINTS = ("huggingface_hub.constants.ENDPOINT", "huggingface_hub.hf_api.constants.ENDPOINT")


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    base = folder / "a place of mine" / "base"
    own = load_model(ModelConfig(pretraining_steps=0), sequence_length=24)
    own.save(own.initial_parameters(), base)
    model = {"name_or_path": str(base), "pretraining_steps": None, "lora_rank": 2}
    model["trainable"] = "all"
    shared = {"ledger": str(folder / "people.json"), "epsilon": 9.0, "delta": 1e-3}
    config = write_config(folder / "c.toml", speeches, model=model, privacy={"shared": shared})
    fedsim_ok("run", config, "--out", folder / "run")
    return folder / "run"


def listed(stdout: str) -> set[str]:
    return {line.split()[-1] for line in stdout.splitlines() if line.startswith(" ")}


@pytest.mark.parametrize(("options", "folder"), [((), "adapter"), (("--merged",), "model")])
def test_a_dry_run_lists_every_file_of_one_folder_and_sends_nothing(
    finished: Path, options: tuple[str, ...], folder: str
) -> None:
    done = fedsim_ok("push", finished, "me/mine", "--dry-run", *options)
    assert listed(done.stdout) == {path.name for path in (finished / folder).iterdir()}
    assert {"README.md", "privacy.json"} < listed(done.stdout)
    assert "Every user has (ε = " in done.stdout
    assert "Nothing was sent" in done.stdout
    assert ("The adapter's base, base, is on no hub" in done.stdout) == (folder == "adapter")


@pytest.mark.parametrize("folder", ["adapter", "model"])
def test_no_file_says_where_anything_lies_on_this_machine(finished: Path, folder: str) -> None:
    for path in (finished / folder).iterdir():
        assert b"a place of mine" not in path.read_bytes()
        assert str(finished.parent).encode() not in path.read_bytes()


def test_a_file_of_somebody_else_an_edited_promise_and_an_unfinished_run_are_refused(
    finished: Path, tmp_path: Path
) -> None:
    changes: dict[str, Callable[[Path], object]] = {
        "notes": lambda run: (run / "adapter" / "metrics.jsonl").write_text("mine"),
        "link": lambda run: (run / "adapter" / "vocab.txt").symlink_to(run / "metrics.jsonl"),
        "vocabulary": lambda run: (run / "adapter" / "vocab.private").write_text("mine"),
        "folder": lambda run: (run / "adapter" / "more").mkdir(),
        "edited": lambda run: (run / "adapter" / "privacy.json").write_text(
            (run / "adapter" / "privacy.json").read_text().replace('"epsilon": 2', '"epsilon": 1')
        ),
        "unfinished": lambda run: (run / "report.json").unlink(),
        "card": lambda run: (run / "adapter" / "README.md").unlink(),
    }
    for name, change in changes.items():
        run = shutil.copytree(finished, tmp_path / name)
        change(run)
        done = fedsim("push", run, "me/mine", "--dry-run")
        words = {
            "edited": "was edited",
            "unfinished": "holds no finished run",
            "card": "no model goes without its card",
        }
        assert words.get(name, "not what fedsim writes there") in done.complaint
    done = fedsim("push", tmp_path / "nothing", "me/mine", "--dry-run")
    assert "nothing': no such folder" in done.complaint


@pytest.mark.parametrize(("base", "is_noted"), [("tiny-gpt", True), ("owner/name", False)])
def test_a_base_of_fedsims_own_is_on_no_hub(
    speeches: Path, tmp_path: Path, base: str, is_noted: bool
) -> None:
    model = {"name_or_path": base, "pretraining_steps": None}
    write_config(tmp_path / "config.toml", speeches, model=model)
    assert about_base(RunFolder(tmp_path)).startswith(f"The adapter's base, {base},") == is_noted


class _Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub's interface does, as far as one upload of small files goes."""

    seen: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, body))
        answers: dict[str, Any] = {
            "/api/validate-yaml": {"errors": [], "warnings": []},
            "/api/repos/create": {"url": "https://huggingface.co/me/mine"},
            "/api/models/me/mine/commit/main": {
                "commitUrl": "https://huggingface.co/me/mine/commit/1",
                "commitOid": "1",
            },
        }
        answer = answers.get(self.path)
        if self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            answer = {
                "files": [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for file in files
                ]
            }
        self._say(200 if answer else 404, answer or {"error": "no such place"})

    def do_GET(self) -> None:
        there = ("README.md", "model.safetensors", "LICENSE", "data/x.safetensors", "old [1].ckpt")
        if "/tree/" in self.path:
            self._say(200, [{"type": "file", "path": n, "oid": "0", "size": 1} for n in there])
        else:
            self._say(200, {"sha": "0", "id": "me/mine", "siblings": []})

    def _say(self, status: int, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """An address that takes an upload; what was sent to it."""
    seen: list[tuple[str, bytes]] = []
    handler = type("Hub", (_Hub,), {"seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for place in ENDPOINTS:
        monkeypatch.setattr(place, address)
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield seen
    server.shutdown()
    server.server_close()


def test_those_files_and_no_other_are_sent(finished: Path, hub: list[tuple[str, bytes]]) -> None:
    done = fedsim("push", finished, "me/mine")
    assert done.returncode == 2
    assert "has 2 files that fedsim does not write, such as 'data/x.safetensors'" in done.stderr
    assert not [body for path, body in hub if path.endswith("/commit/main")]
    done = fedsim_ok("push", finished, "me/mine", "--replace")
    assert "https://huggingface.co/me/mine/commit/1; deleted there: model.sa" in done.stdout
    created = json.loads(next(body for path, body in hub if path == "/api/repos/create"))
    assert created["name"] == "mine"
    assert created.get("visibility") == "private"
    (commit,) = [body for path, body in hub if path.endswith("/commit/main")]
    sent = [json.loads(line) for line in commit.splitlines()]
    names = {line["value"]["path"] for line in sent if line["key"] == "file"}
    assert names == {path.name for path in (finished / "adapter").iterdir()}
    # What another model left there would be opened beside the new card.
    gone = {line["value"]["path"] for line in sent if line["key"] == "deletedFile"}
    assert gone == {"model.safetensors", "data/x.safetensors", "old [1].ckpt"}


def test_a_hub_that_is_not_there_is_one_sentence(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ENDPOINTS:
        monkeypatch.setattr(place, "http://127.0.0.1:9")
    for repo, words in {
        "me/mine": "the hub cannot be reached or refuses",
        "mine": "give OWNER",
    }.items():
        done = fedsim("push", finished, repo)
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_a_name_that_is_none_is_refused_by_a_dry_run_too(finished: Path) -> None:
    assert "REPO = 'a b': give OWNER/NAME" in fedsim("push", finished, "a b", "--dry-run").complaint
