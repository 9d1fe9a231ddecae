"""Model folders that would run code, lead elsewhere, or are not whole: refused, with a message."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsim.clients.models.loading import load, open_pretrained
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.materials import Materials

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
CODE = 'from pathlib import Path\nPath("executed").mkdir()\nclass Config: pass\nModel = Config\n'


class Payload:
    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.mkdir, (Path("unpickled"),)


@pytest.fixture(scope="module")
def saved(materials: Materials, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    materials.model.save(materials.model.initial_parameters(), folder)
    return folder


def edit(folder: Path, name: str, **changes: object) -> None:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps(content | changes), encoding="utf-8")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))


def code(folder: Path) -> None:
    (folder / "evil.py").write_text(CODE, encoding="utf-8")
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    edit(folder, "config.json", auto_map=names, model_type="evil", trust_remote_code=True)


def elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "weights.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "model-1.safetensors")
    index = {"metadata": {}, "weight_map": {"x": "../weights.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def adapters(folder: Path) -> None:
    told = {"base_model_name_or_path": "../base", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(told), encoding="utf-8")


def not_whole(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop(next(name for name in weights if "ln_2" in name))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def add_weights(folder: Path, *names: str) -> None:
    weights = load_file(folder / "model.safetensors") | {name: torch.ones(4) for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def compiled(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    renamed = {f"_orig_mod.{name}": value for name, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


def pointer(folder: Path, name: str) -> None:
    (folder / name).write_text(POINTER, encoding="utf-8")


def no_tokenizer(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            path.unlink()


CASES: list[tuple[Callable[[Path], None] | dict[str, object], str]] = [
    (pickled, "no safetensors weights; pickles are not read, as they can run code"),
    (code, "it needs its own code, and fedsim never runs code of a model"),
    (elsewhere, r"'\.\./weights\.safetensors' is not a file in the folder"),
    (adapters, "merge them"),
    (not_whole, r"lack tensors that config\.json asks for\. There are 1; the first is .*ln_2"),
    (
        {"n_inner": 40},
        r"of another shape than config\.json says.* transformer\.h\.0\.mlp\.c_fc\.bias .*\[40\] by",
    ),
    (
        lambda folder: add_weights(folder, "transformer.h.0.attn.q_proj.bias", "v_head.bias"),
        r"that config\.json has no place for\. There are 2; the first is .*q_proj.bias\. Use a",
    ),
    ({"n_layer": 1}, r"no place for\. There are 33; the first is transformer\.h\.1\.a"),
    (compiled, "the weight files lack tensors"),
    (
        partial(pointer, name="model.safetensors"),
        r"model\.safetensors is a git-LFS pointer: run git lfs pull$",
    ),
    (partial(pointer, name="tokenizer.json"), r"tokenizer\.json is a git-LFS pointer"),
    (partial(pointer, name="config.json"), r"config\.json is a git-LFS pointer"),
    ({"n_positions": 128.0}, "n_positions"),
    (partial(edit, name="tokenizer_config.json", __class__=7), "__class__"),
    (
        no_tokenizer,
        r"can be opened here: the folder has no tokenizer; save one .*\.save_pretrained$",
    ),
]
"""What is done to a folder, or changed in its config.json."""


@pytest.mark.parametrize(("harm", "message"), CASES)
def test_a_hostile_folder(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path], None] | dict[str, object],
    message: str,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    if isinstance(harm, dict):
        edit(folder, "config.json", **harm)
    else:
        harm(folder)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=message):
        open_pretrained(str(folder))
    assert sorted(tmp_path.iterdir()) == before
    assert not list(tmp_path.rglob("executed")) + list(tmp_path.rglob("unpickled"))


def test_buffers_of_an_earlier_version_are_no_weights(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "model")
    add_weights(folder, "h.0.attn.bias", "transformer.h.1.attn.attention.masked_bias")
    open_pretrained(str(folder))


def test_an_adapter_that_is_a_pointer(saved: Path, tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        pointer(tmp_path, name)
    config = ModelConfig(name_or_path=str(saved), adapter=str(tmp_path))
    with pytest.raises(ConfigError, match=r"^model\.adapter = .*adapter_config.json is a git-LFS"):
        load(config)


def test_the_folder_itself_opens(saved: Path) -> None:
    module, _ = open_pretrained(str(saved))
    assert sum(value.numel() for value in module.parameters()) > 0
