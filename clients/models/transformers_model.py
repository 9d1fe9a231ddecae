"""A transformers network as a value: parameters in, logits out."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.activations import NewGELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer

from fedsim.clients.models.chat import ChatEncoder
from fedsim.clients.models.dropout import install_dropout, row_streams
from fedsim.clients.models.encoders import encoder_of, plain
from fedsim.clients.models.gpu_kernels import align_words
from fedsim.clients.models.quantised import quantise_
from fedsim.clients.models.several_devices import follow_, place_
from fedsim.clients.models.trainable import (
    add_lora,
    check_merges,
    open_adapter,
    select_trainable,
)
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError, about
from fedsim.seeding import stream
from fedsim.tensors import Tensors, check_same_layout
from fedsim.utils.files import check_no_pointers, shown_name
from fedsim.utils.terminal import quietly


class TransformersModel:
    """A causal language model of transformers, or one with adapters, as a `LanguageModel`.

    The module stays in evaluation mode: its own dropout would draw from a global generator, so an
    example's gradient would depend on the examples before it. `config.dropout` replaces these
    layers by layers that use the streams of `row_streams`. No parameter of the module requires a
    gradient; only tensors passed to `logits` do.

    Attributes:
        module: the network, for engines that use its layers; its own weights never change.
        tokenizer: the transformers tokenizer.
        earlier_training: sentences of `origin` on the training before this run.
        encoder: encoder behind `encode`; it can be sent to a process without the network.
        places: map from each name of a trainable parameter in the module to its first name.
        is_adapter: whether only adapters are trained.
        blocks: parts of the network that may be recomputed in the backward pass.
        dropout: dropout probability.
        attention: attention kind. "sdpa" is fused: rows then hold one sequence each, and `vmap` has
            no rule for it.
        quantisation: quantisation of the frozen linear layers, or None.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: ModelConfig,
        *,
        origin: str,
        seed: int = 0,
        sequence_length: int = 64,
        device: str = "cpu",
    ) -> None:
        """Wrap `module` and change it in place: adapters are added, and it moves to `device`.

        Separate several devices by commas; parameters and tokens are on the first.

        Raises:
            ConfigError: module and tokenizer do not fit each other, or the sequence length, or
                `config`.
        """
        self.name = config.name_or_path
        self.origin = origin
        self.tokenizer = tokenizer
        self._devices = device.split(",")
        self.device = torch.device(self._devices[0])
        self.vocabulary_size = int(module.config.get_text_config().vocab_size)
        self.num_parameters = sum(value.numel() for value in module.parameters())
        _check_fit(module, tokenizer, self.name, sequence_length)
        self.sequence_length = sequence_length
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(
                f"model.name_or_path = {self.name!r}: its tokenizer is not one of the package "
                "tokenizers; use a model with a tokenizer.json"
            )
        self._tokenizer_json = backend.to_str()
        self.tokenizer_fingerprint = hashlib.sha256(self._tokenizer_json.encode()).hexdigest()
        self.encoder = encoder_of(self._tokenizer_json, *_begin_and_end(tokenizer, self.name))
        whole_words = isinstance(backend.model, models.WordLevel)
        self.unknown_token_id = tokenizer.unk_token_id if whole_words else None
        self._pad_token_id = _make_padding_ordinary(module)
        self.dropout = config.dropout
        self.attention = config.attention
        self.quantisation = config.quantisation
        if (module.config._attn_implementation or "eager") != config.attention:
            _set_attention(module, config)
        _fuse_activations(module)
        align_words(module)
        self.module = _prepared(module, config, seed)
        self.blocks = [
            part for part in self.module.modules() if isinstance(part, GradientCheckpointingLayer)
        ]
        self._place()
        if len(self._devices) > 1:
            follow_(self.blocks, self._devices)
        names = [name for name, _ in self.module.named_parameters()]
        selected = select_trainable(
            names,
            config.trainable,
            lora=config.adapts,
            freeze_a=config.lora_freeze_a,
        )
        self._trainable = _subset(self.module, selected)
        self.places = _places(self.module, set(selected))
        self.is_adapter = all(".lora_" in name for name in selected)
        if self.dropout:  # raises if the input of a dropout layer has no row per text
            text = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
            with torch.no_grad(), row_streams(text[:, 0]):
                self.logits(self._trainable, text)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text between a begin and an end token, without truncation.

        A special token spelt out in a text is read as text, so a text cannot end early.
        """
        return self.encoder(texts)

    def chat_encoder(self, loss_on: str, chat_template: str | None, field: str) -> ChatEncoder:
        """Return the encoder of conversations; see `ChatEncoder`.

        Args:
            loss_on: tokens that count in the loss.
            chat_template: a Jinja file, or "tokenizer" or None for the tokenizer's own template;
                with None, prompts and completions that are strings do not use a template.
            field: key and value in the config, for errors.

        Raises:
            ConfigError: the file cannot be read.
        """
        template = self.tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if chat_template not in (None, "tokenizer"):
            with about(f"data.chat_template = {chat_template!r}: ", (OSError, ValueError)):
                check_no_pointers([file := Path(chat_template).expanduser()])
                template = file.read_text(encoding="utf-8")
        begin, end = _begin_and_end(self.tokenizer, self.name)
        wraps = chat_template is not None
        special = {
            name: value
            for name, value in self.tokenizer.special_tokens_map.items()
            if isinstance(value, str)
        }
        tokenizer = plain(self._tokenizer_json)
        return ChatEncoder(tokenizer, begin, end, template, special, wraps, loss_on, field)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without begin and end tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        """Return copies of the trainable parameters, float32, on the CPU."""
        return {
            name: value.detach().to("cpu", torch.float32, copy=True)
            for name, value in self._trainable.items()
        }

    def logits(
        self, parameters: Tensors, tokens: torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return next-token logits, (batch, length, vocabulary_size), at least float32.

        No attention mask is needed: padding is on the right, and the model is causal.

        Args:
            parameters: one tensor per trainable name, on `device`.
            tokens: (batch, length) int64 on `device`.
            positions: (batch, length) int64 for rows with several sequences, counted from 0 in
                each. Networks use it differently; see `row_tokens` in
                `fedsim.clients.engines.per_example.packing`.

        Raises:
            ValueError: `parameters` are not exactly the trainable ones.
        """
        if parameters.keys() != self._trainable.keys():
            check_same_layout(self._trainable, parameters)
        # Tied names are already known, so torch does not need to search for them in each call.
        replaced = {place: parameters[name] for place, name in self.places.items()}
        if len(self._devices) > 1:  # gradients come back the same way
            held = self._trainable
            replaced = {
                place: value.to(held[self.places[place]].device)
                for place, value in replaced.items()
            }
        options = {"use_cache": False} | ({} if positions is None else {"position_ids": positions})
        output = torch.func.functional_call(
            self.module, replaced, (tokens,), options, tie_weights=False
        )
        logits = torch.Tensor(output.logits)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def save_adapter(self, parameters: Tensors, folder: Path) -> None:
        """Write adapter_config.json and the adapter's weights (safetensors), for peft.

        Raises:
            ValueError: `parameters` are not exactly the trainable ones.
        """
        twin = cast(PeftModel, self._twin(parameters))
        for part in twin.peft_config.values():
            part.base_model_name_or_path = shown_name(self.name)
        with quietly():
            twin.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _place(self) -> None:
        place_(self.module, self.blocks, self._devices)

    def _twin(self, parameters: Tensors) -> nn.Module:
        check_same_layout(self._trainable, parameters)
        twin = copy.deepcopy(self.module.to("cpu"))  # a GPU may have no room for a second network
        self._place()
        for value in twin.parameters():  # frozen ones may be in bfloat16: see `mixed_precision`
            value.data = value.data.to(torch.float32)
        with torch.no_grad():
            for name, value in _subset(twin, list(parameters)).items():
                value.copy_(parameters[name])
        return twin

    def save(self, parameters: Tensors, folder: Path) -> None:
        """Write a transformers folder (safetensors) with these parameters and the tokenizer.

        Adapters are merged into the weights, so the folder holds a plain model that computes the
        same as the trained one.

        Raises:
            ValueError: `parameters` are not exactly the trainable ones.
        """
        twin = self._twin(parameters)
        merged = twin.merge_and_unload() if isinstance(twin, PeftModel) else twin
        plain = cast(PreTrainedModel, merged)
        plain.config.pad_token_id = self._pad_token_id
        with quietly():
            plain.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def _fuse_activations(module: PreTrainedModel) -> None:
    """Replace GPT-2's GELU, eight passes over the widest activations, by one kernel."""
    for part in module.modules():
        for name, child in part.named_children():
            if type(child) is NewGELUActivation:
                setattr(part, name, nn.GELU(approximate="tanh"))


def _set_attention(module: PreTrainedModel, config: ModelConfig) -> None:
    try:
        with quietly():
            module.set_attn_implementation(config.attention)
        done = module.config._attn_implementation == config.attention
    except (ValueError, ImportError):
        done = False
    if not done:
        raise ConfigError(
            f"model.attention = {config.attention!r}: transformers cannot switch the network of "
            f"{config.name_or_path!r} to it; leave this key out"
        )


def _prepared(module: PreTrainedModel, config: ModelConfig, seed: int) -> nn.Module:
    """Return the network with its adapters and dropout, frozen, in evaluation mode."""
    prepared: nn.Module = module
    if config.adapter is not None:
        prepared = open_adapter(module, config.adapter, config.name_or_path)
    elif config.lora_rank > 0:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, "model").integers(2**63)))
            prepared = add_lora(module, config)
    if config.adapts and config.merged:
        check_merges(prepared, config)
    if config.dropout > 0.0 and install_dropout(prepared, config.dropout) == 0:
        raise ConfigError(
            f"model.dropout = {config.dropout}: the network of {config.name_or_path!r} has no "
            "dropout layers; give 0.0, or lora_rank > 0, whose adapters have some"
        )
    prepared.requires_grad_(False).eval()
    if config.quantisation is not None:
        quantise_(prepared, config)
    return prepared


def _subset(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the named parameters, in the order of `names`."""
    everything = dict(module.named_parameters())
    return {name: everything[name] for name in names}


def _places(module: nn.Module, trainable: set[str]) -> dict[str, str]:
    """Return the map from each name of a trainable parameter to its first name."""
    first = {id(value): name for name, value in module.named_parameters()}
    everywhere = module.named_parameters(remove_duplicate=False)
    return {name: first[id(value)] for name, value in everywhere if first[id(value)] in trainable}


def _make_padding_ordinary(module: PreTrainedModel) -> int | None:
    """Remove the network's special treatment of the padding id, and return the id.

    With a padding id, transformers reads the values of each batch for a warning, which `vmap`
    forbids and a GPU waits for. An embedding also sets that row's gradient to zero, which engines
    that compute norms without gradients would miss.
    """
    pad_token_id: int | None = getattr(module.config, "pad_token_id", None)
    vars(module.config)["pad_token_id"] = None  # ModernBERT's setter accepts only numbers
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.padding_idx = None
    return pad_token_id


def max_positions(module: nn.Module) -> int | None:
    """Return the number of positions of a transformers network, or None if it is not stated."""
    config = getattr(module, "config", None)
    if not isinstance(config, PretrainedConfig):
        return None
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if positions == -1 else positions  # XLNet: no limit


def _check_fit(
    module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, sequence_length: int
) -> None:
    text_config = module.config.get_text_config()
    positions = max_positions(module)
    if positions is not None and sequence_length > positions:
        raise ConfigError(
            f"data.sequence_length = {sequence_length}: the model {name!r} has {positions} "
            f"positions; give at most {positions}"
        )
    num_ids = 1 + max(_usable_ids(tokenizer))
    if num_ids > text_config.vocab_size:
        raise ConfigError(
            f"model.name_or_path = {name!r}: its tokenizer has {num_ids} ids but the "
            f"network only {text_config.vocab_size}; they do not belong together"
        )


def _usable_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids that `encode` can return; special tokens occur only at both ends."""
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id} - {None}
    return set(tokenizer.get_vocab().values()) - special | ends


def _begin_and_end(tokenizer: PreTrainedTokenizerBase, name: str) -> tuple[int, int]:
    """Return the ids before and after a text; if one is missing, the other replaces it."""
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None and end is None:
        raise ConfigError(
            f"model.name_or_path = {name!r}: its tokenizer has neither a bos_token nor an "
            "eos_token; give one in its tokenizer_config.json"
        )
    return int(end if begin is None else begin), int(begin if end is None else end)
