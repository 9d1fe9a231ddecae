"""Conversations to tokens: which of them count, compared with TRL's labels, and what is refused."""

from __future__ import annotations

import json
import pickle
import traceback
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from fedsim.clients.models.chat import ChatEncoder
from fedsim.clients.models.encoders import plain
from fedsim.clients.models.tokenizers import byte_pair_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.materials import load_model

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n'}}@{{message['content'] + '<|im_end|>' + '\n'}}@"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Of SmolLM2, in fedsim's words for the system; TRL has no training variant of it."""
_MARKED = (
    "{% if message['role'] == 'assistant' %}{% generation %}{{message['content'] + '<|im_end|>' + "
    "'\n'}}{% endgeneration %}{% else %}{{message['content'] + '<|im_end|>' + '\n'}}{% endif %}"
)


def of_trl(name: str) -> str:
    return files("trl").joinpath("chat_templates", f"{name}.jinja").read_text(encoding="utf-8")


def chatml(*, marked: bool) -> str:
    before, content, after = CHATML.split("@")
    plain = content if not marked else _MARKED
    return before + plain + after


TEMPLATES: dict[str, tuple[str, str, list[str]]] = {
    # for fedsim, for TRL, special tokens
    "ChatML": (chatml(marked=False), chatml(marked=True), ["<|im_start|>", "<|im_end|>"]),
    "Llama 3": (
        of_trl("llama3"),
        of_trl("llama3"),
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    ),
    "Qwen 3": (
        of_trl("qwen3_instruct_2507"),
        of_trl("qwen3_instruct_2507"),
        ["<|im_start|>", "<|im_end|>"],
    ),
    "Gemma": (of_trl("gemma"), of_trl("gemma"), ["<bos>", "<start_of_turn>", "<end_of_turn>"]),
}
TURNS = ["Who goes there?", "I, my lord…", "What war, and where?", "None: the king is dead. \n"]
SHORT = ["So?", "é"]


def messages(texts: list[str]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def tokenizer(template: str, special: list[str]) -> PreTrainedTokenizerFast:
    made = byte_pair_tokenizer(400)
    made.add_special_tokens({"bos_token": special[0], "additional_special_tokens": special})
    made.chat_template = template
    return made


def encoder(
    made: PreTrainedTokenizerFast, loss_on: str, field: str = "data", *, wraps: bool = False
) -> ChatEncoder:
    special = {"bos_token": str(made.bos_token), "eos_token": str(made.eos_token)}
    ends = int(made.bos_token_id), int(made.eos_token_id)
    template = str(made.chat_template)
    return ChatEncoder(
        plain(made.backend_tokenizer.to_str()), *ends, template, special, wraps, loss_on, field
    )


def trl_labels(
    made: PreTrainedTokenizerFast, rows: list[dict[str, Any]], out: Path, *, assistant: bool
) -> list[dict[str, list[int]]]:
    """Ids and labels, -100 where a token does not count, as TRL's trainer prepares them."""
    # Not at the top: each process that collects tests would wait for them.
    from datasets import Dataset  # noqa: PLC0415
    from trl.trainer.sft_config import SFTConfig  # noqa: PLC0415
    from trl.trainer.sft_trainer import SFTTrainer  # noqa: PLC0415

    shape = GPT2Config(vocab_size=len(made), n_positions=8, n_embd=4, n_layer=1, n_head=1)
    options = SFTConfig(
        output_dir=str(out),
        report_to="none",
        assistant_only_loss=assistant,
        max_length=None,
        use_cpu=True,
        bf16=False,
    )
    data = Dataset.from_list(rows)
    trainer = SFTTrainer(GPT2LMHeadModel(shape), options, None, data, processing_class=made)
    assert isinstance(trainer.train_dataset, Dataset)
    return [
        {key: row[key] for key in ("input_ids", "labels")}
        for row in trainer.train_dataset.to_list()
    ]


def as_labels(tokens: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, list[int]]:
    ids = np.where(tokens < 0, ~tokens, tokens)
    return {"input_ids": ids.tolist(), "labels": np.where(tokens < 0, -100, tokens).tolist()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_assistants_tokens_are_those_of_trl(name: str, tmp_path: Path) -> None:
    ours, theirs, special = TEMPLATES[name]
    rows = [{"messages": messages(texts)} for texts in (TURNS, SHORT, TURNS[:2] + SHORT)]
    labels = trl_labels(tokenizer(theirs, special), rows, tmp_path, assistant=True)
    found = encoder(tokenizer(ours, special), "assistant")([json.dumps(row) for row in rows])
    assert [as_labels(tokens) for tokens in found] == labels
    assert all((tokens >= 0).any() and (tokens < 0).any() for tokens in found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_completions_tokens_are_those_of_trl(name: str, tmp_path: Path) -> None:
    ours, _, special = TEMPLATES[name]
    made = tokenizer(ours, special)
    rows = [
        {"prompt": messages(texts)[:-1], "completion": messages(texts)[-1:]}
        for texts in (TURNS, SHORT)
    ]
    labels = trl_labels(made, rows, tmp_path, assistant=False)
    found = encoder(made, "completion")([json.dumps(row) for row in rows])
    assert [as_labels(tokens) for tokens in found] == labels


@pytest.mark.filterwarnings("ignore")
def test_strings_are_joined_as_trl_joins_them(tmp_path: Path) -> None:
    """TRL puts no begin token before them."""
    made = byte_pair_tokenizer(400)
    rows = [{"prompt": "Who goes there? ", "completion": "I, my lord."}]
    (labels,) = trl_labels(made, rows, tmp_path, assistant=False)
    (found,) = encoder(made, "completion")([json.dumps(row) for row in rows])
    assert as_labels(found[1:]) == labels
    assert found[0] == ~int(made.bos_token_id)


def test_strings_go_through_the_template_where_that_is_asked_for() -> None:
    ours, _, special = TEMPLATES["ChatML"]
    made = tokenizer(ours, special)
    strings = json.dumps({"prompt": TURNS[0], "completion": TURNS[1]})
    lists = {"prompt": messages(TURNS[:2])[:1], "completion": messages(TURNS[:2])[1:]}
    (wrapped,) = encoder(made, "completion", wraps=True)([strings])
    assert wrapped.tolist() == encoder(made, "completion")([json.dumps(lists)])[0].tolist()
    assert wrapped.tolist() != encoder(made, "completion")([strings])[0].tolist()


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_is_the_same_ids_and_every_one_counts(name: str) -> None:
    ours, _, special = TEMPLATES[name]
    made, text = tokenizer(ours, special), json.dumps({"messages": messages(TURNS)})
    (everything,), (answers,) = (encoder(made, on)([text]) for on in ("all", "assistant"))
    assert (everything >= 0).all()
    assert everything.tolist() == as_labels(answers)["input_ids"]
    ids = made.apply_chat_template(messages(TURNS), return_dict=False)
    assert everything.tolist() == ids


def test_it_can_be_sent_to_another_process() -> None:
    ours, _, special = TEMPLATES["ChatML"]
    before = encoder(tokenizer(ours, special), "assistant")
    text = json.dumps({"messages": messages(TURNS)})
    (here,) = before([text])
    (there,) = pickle.loads(pickle.dumps(before))([text])  # noqa: S301
    assert here.tolist() == there.tolist()


def test_a_role_that_the_template_refuses_is_named() -> None:
    ours, _, special = TEMPLATES["Gemma"]
    wrong = json.dumps({"messages": [{"role": "system", "content": "Be kind."}]})
    with pytest.raises(
        ConfigError, match=r"^data: the chat template refuses a conversation: System"
    ):
        encoder(tokenizer(ours, special), "assistant")([wrong])


def test_a_refusal_quotes_no_conversation() -> None:
    """A template may put what a user wrote into its error, and a role may be anything."""
    refusing = "{{ raise_exception('what is ' + messages[0].role + messages[0].content) }}"
    messages = [{"role": "Jane Roe", "content": "HIV clinic"}]
    with pytest.raises(ConfigError) as refused:
        encoder(tokenizer(refusing, ["<s>"]), "all")([json.dumps({"messages": messages})])
    said = "".join(traceback.format_exception(refused.value))
    assert "a conversation: TemplateError" in said
    assert "Jane" not in said
    assert "clinic" not in said


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    forgetful = (
        "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.role + m.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
    )
    made = tokenizer(forgetful, ["<s>"])
    with pytest.raises(ConfigError, match=r"renders earlier turns differently.*data.chat_template"):
        encoder(made, "assistant")([json.dumps({"messages": messages(TURNS)})])


def test_a_prompt_that_the_template_rewrites_is_refused() -> None:
    """The system's words stand before the last of the user's, so the prompt changes its place."""
    moving = (
        "{% set told = messages[0].content %}{% for m in messages[1:] %}{% if m.role == 'user' %}"
        "{% if m == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}{{ told }}"
        "{% endif %}[{{ m.content }}]{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    made = tokenizer(moving, ["<s>"])
    prompt = [{"role": "system", "content": "Be kind."}, *messages(TURNS[:1])]
    row = {"prompt": prompt, "completion": messages(["", *TURNS[:2]])[1:]}
    with pytest.raises(ConfigError, match=r"so the completion tokens cannot be found; .*as data"):
        encoder(made, "completion")([json.dumps(row)])
    last = {"prompt": prompt, "completion": messages(["", TURNS[1]])[1:]}
    (found,) = encoder(made, "completion")([json.dumps(last)])
    assert made.decode([i for i in found.tolist() if i >= 0]) == TURNS[1]


def test_a_template_is_told_one_day_always() -> None:
    row = json.dumps({"messages": messages(SHORT)})
    for asked in (
        "{{ strftime_now('%d %b %Y') }}",
        """{% if strftime_now is defined %}{{ strftime_now ( "%d %b %Y" ) }}{% endif %}""",
    ):
        made = tokenizer(asked, ["<s>"])
        (found,) = encoder(made, "all")([row])
        assert made.decode(found) == "26 Jul 2024"
    for other in ("{{ strftime_now (f) }}", "{% set now = strftime_now %}{{ now('%d') }}"):
        unknown = tokenizer("{% set f = '%d' %}" + other, ["<s>"])
        with pytest.raises(ConfigError, match=r"^data: .* today's date .*as data\.chat_template"):
            encoder(unknown, "all")([row])


def test_a_model_without_a_template_says_what_would_do() -> None:
    config = ModelConfig(name_or_path="mcmahan-lstm", pretraining_steps=0)
    model = load_model(config, sequence_length=16)
    assert isinstance(model, TransformersModel)
    field = "data.messages_column = 'messages'"
    text = json.dumps({"messages": messages(TURNS)})
    with pytest.raises(ConfigError, match=rf"^{field}: .* no chat template; give one as"):
        model.chat_encoder("assistant", None, field)([text])
    with pytest.raises(ConfigError, match=r"^data.chat_template = 'none.jinja': .*No such file"):
        model.chat_encoder("assistant", "none.jinja", field)


def test_special_tokens_spelt_out_in_strings_are_text() -> None:
    ours, _, special = TEMPLATES["ChatML"]
    made = tokenizer(ours, special)
    row = json.dumps({"prompt": "<|im_end|>", "completion": "<|im_end|>"})
    (found,) = encoder(made, "completion")([row])
    assert made.convert_tokens_to_ids("<|im_end|>") not in as_labels(found)["input_ids"]
