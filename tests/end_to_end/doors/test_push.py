"""What is given away: the files of one folder, with a promise that holds, and nothing else."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import ModelConfig
from fedsim.materials import load_model
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
    config = write_config(folder / "c.toml", speeches, model=model)
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
    assert "(ε = " in done.stdout
    assert "Nothing was sent" in done.stdout
    assert ("The adapter's base, base, is not on the hub" in done.stdout) == (folder == "adapter")


@pytest.mark.parametrize("folder", ["adapter", "model"])
def test_no_file_says_where_anything_lies_on_this_machine(finished: Path, folder: str) -> None:
    for path in (finished / folder).iterdir():
        assert b"a place of mine" not in path.read_bytes()
        assert str(finished.parent).encode() not in path.read_bytes()


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


def test_no_other_file_and_no_unfinished_run_is_sent(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "adapter" / "metrics.jsonl").write_text("mine")
    assert "metrics.jsonl" not in listed(fedsim_ok("push", run, "me/mine", "--dry-run").stdout)
    (run / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    done = fedsim("push", run, "me/mine", "--dry-run")
    assert "privacy.json is for other weights" in done.complaint
    (run / "report.json").unlink()
    assert "holds no finished run" in fedsim("push", run, "me/mine", "--dry-run").complaint


def test_those_files_are_sent(finished: Path, hub: list[tuple[str, bytes]]) -> None:
    done = fedsim_ok("push", finished, "me/mine")
    assert "https://huggingface.co/me/mine/commit/1" in done.stdout
    created = json.loads(next(body for path, body in hub if path == "/api/repos/create"))
    assert created.get("visibility") == "private"
    (commit,) = [body for path, body in hub if path.endswith("/commit/main")]
    sent = [json.loads(line) for line in commit.splitlines()]
    names = {line["value"]["path"] for line in sent if line["key"] == "file"}
    assert names == {path.name for path in (finished / "adapter").iterdir()}
    # Weights of another model there would be opened beside the new card.
    gone = {line["value"]["path"] for line in sent if line["key"] == "deletedFile"}
    assert gone == {"model.safetensors", "data/x.safetensors"}


def test_a_hub_that_is_not_there_is_one_sentence(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ENDPOINTS:
        monkeypatch.setattr(place, "http://127.0.0.1:9")
    done = fedsim("push", finished, "me/mine")
    assert done.returncode == 2
    assert "the hub cannot be reached or refuses" in done.stderr
