"""The page and the notebook on chat data, as they stand there, on a small network."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from transformers import LlamaConfig, LlamaForCausalLM

from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.materials import load_model
from tests.conftest import WORDS, write_rows
from tests.helpers.commands import page_command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "chat-to-adapter.md"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Llama of random weights, whose tokenizer has a chat template."""
    folder = tmp_path_factory.mktemp("base") / "small-llama"
    own = load_model(ModelConfig(pretraining_steps=0), sequence_length=64)
    assert isinstance(own, TransformersModel)
    config = LlamaConfig(
        vocab_size=own.vocabulary_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    own.tokenizer.chat_template = TEMPLATE
    own.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def place(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which this environment's commands are found, and nothing is downloaded."""
    commands = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MODEL", str(model))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def commands() -> list[str]:
    """Every command of the page but the comparison, which is three runs more of one."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [line for block in blocks for line in block.splitlines()]
    assert sum(line.startswith("fedsim compare") for line in found) == 1
    return [line for line in found if not line.startswith("fedsim compare")]


def test_the_commands_of_the_page(place: Path) -> None:
    shutil.copy(ROOT / "experiments" / "configs" / "smollm2-chat.toml", place)
    task = re.search(r'```yaml title="answers.yaml"\n(.*?)```', PAGE.read_text("utf-8"), re.DOTALL)
    assert task is not None
    (place / "answers.yaml").write_text(task[1], encoding="utf-8")
    asked = [{"question": "Who comes here?", "answer": "A friend."}] * 3
    write_rows(place / "answers.jsonl", asked)
    trained, verified, pushed, scored = (page_command(line, place) for line in commands())
    assert "Every user has (ε = 7.99" in trained
    assert trained.splitlines()[0] in verified
    assert "adapter_model.safetensors" in pushed
    assert "Nothing was sent" in pushed
    assert re.search(r"answers.*perplexity", scored, re.DOTALL)


def test_the_notebook(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    chats = [
        {
            "user": f"user {number % 60}",
            "messages": [
                {"role": role, "content": " ".join(rng.choice(WORDS, 5))}
                for role in ("user", "assistant")
            ],
        }
        for number in range(240)
    ]
    path = place / "chats.jsonl"
    write_rows(path, chats)
    monkeypatch.setenv("CHATS", str(path))
    notebook = nbformat.read(PAGE.with_suffix(".ipynb"), as_version=4)
    assert len(notebook.cells) == 10
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(place)}}).execute()
    shown = [
        str(output.get("text") or output["data"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    text = "\n".join(shown)
    assert "<iframe srcdoc=" in text
    assert text.count("Every user has (ε = 7.9") >= 3  # the page, the statement, card and check
    assert (
        "base_model" in (place / "runs" / "run-001" / "adapter" / "adapter_config.json").read_text()
    )
    assert "library_name: peft" in text
