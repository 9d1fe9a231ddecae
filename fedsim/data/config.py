"""The config section `[data]`, and the recipes that fill it."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedsim.data.preparation.prepare import AnyStep, check_owners
from fedsim.data.sources.names import SPEAKER
from fedsim.data.store.manifest import Cutting, LossOn
from fedsim.errors import about, nearest
from fedsim.utils.section import MOST, Fraction, Section

FOLDER = Path(__file__).parent / "recipes"

Text = Annotated[str, Field(min_length=1)]


class Recipe(Section):
    """A paper's data set with the paper's preparation: one file of the folder `recipes`.

    Attributes:
        description: the data set and its users, in a sentence.
        follows: the paper and section whose preparation it is.
        differs: differences from the paper, and steps that the paper does not specify.
        licence: permitted use of the texts, as far as their publishers state it.
        local_copy: how to get the data without the hub.
        data: keys of the config's [data]; without `source` if the data set is on no hub.
    """

    description: Text
    follows: Text
    differs: Text
    licence: Text
    local_copy: Text
    data: dict[str, Any]


def recipe_names() -> list[str]:
    """Return the names of all recipes, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@lru_cache
def load_recipe(name: str) -> Recipe:
    """Read a recipe.

    Raises:
        ValueError: the name is unknown; the message has the most similar name.
    """
    known = recipe_names()
    if name not in known:
        hint = nearest(name, known) or f"known: {', '.join(known)}"
        raise ValueError(f"recipe = {name!r}: unknown; {hint}")
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return Recipe.model_validate(tomllib.loads(text))


def with_recipe(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe's keys of [data], overridden by the given keys.

    Raises:
        ValueError: the recipe is unknown, or needs a source because no hub has its texts.
    """
    recipe = load_recipe(name)
    keys = {**recipe.data, **given}
    if "source" not in keys:
        raise ValueError(
            f"recipe = {name!r}: this data set is on no hub; give data.source a local copy: "
            f"{recipe.local_copy}"
        )
    return keys


class CanaryConfig(Section):
    """Planted users for an attack to find (Kandpal et al. 2023, D.2): `docs/attacks.md`."""

    num_users: Annotated[int, Field(ge=2)]
    """Average number of canaries: one coin for each user with enough text. A second, fair coin
    decides whether a canary is held out."""
    num_examples: Annotated[int, Field(ge=1, le=MOST)]
    """Number of examples of each canary, including held-out ones."""
    shared_tokens: Annotated[int, Field(ge=1, le=100)]
    """Consecutive tokens that all examples of a canary share."""


TextKind = Literal["text", "messages", "prompt"]
_TEXT_COLUMNS = ("text_column", "messages_column", "prompt_column")
_COUNTED: dict[TextKind, LossOn] = {
    "text": "all",
    "messages": "assistant",
    "prompt": "completion",
}


class DataConfig(Section):
    """The text: its source, columns, preparation and held-out part: `docs/data.md`."""

    recipe: str | None = None
    """A paper's data set; its recipe sets all keys that are not given."""
    source: Text = "shakespeare"
    """A file or folder of JSON lines, JSON, CSV, Parquet or Arrow; a token store; a hub id;
    "shakespeare" or "shakespeare-chat"."""
    user_column: str | None = None
    """The column with the user: all rows with the same value belong to one user. Default:
    "speaker", or the first name in `owners_column` if that is given."""
    text_column: str = "text"
    """The column with the text."""
    messages_column: str | None = None
    """The column with conversations, instead of `text_column`: lists of {role, content}."""
    prompt_column: str | None = None
    """The column with prompts, instead of `text_column`; needs `completion_column`."""
    completion_column: str | None = None
    """The column with completions; needs `prompt_column`."""
    chat_template: str | None = None
    """A Jinja file, instead of the tokenizer's chat template; for prompts also "tokenizer"."""
    drop_refused: bool = False
    """Drop and count rows that are no conversations or that the template refuses: else errors."""
    owners_column: str | None = None
    """A column that lists the owners of the text; the user is one more owner if `user_column` is
    given. The ε of "els" is then for an owner."""
    owners_separator: Text | None = None
    """Separator of the names, if `owners_column` is one string."""
    loss_on: LossOn | None = None
    """The tokens that count in the loss; by default "assistant" for messages, "completion" for
    prompts, "all" for texts."""
    sequence_length: Annotated[int, Field(ge=2)] = 64
    """Maximum number of tokens of an example."""
    cutting: Cutting = "split"
    """Long texts: "split" into several examples or "truncate"; or first "join" a user's texts."""
    held_out_examples: Fraction = 0.1
    """Share of each user's examples for evaluation; they are never trained on."""
    held_out_users: Fraction = 0.0
    """Probability that a user is never trained on; attacks need such users, for example 0.5."""
    held_out_rule: Literal["random", "first", "last"] = "random"
    """Rule that chooses the held-out examples of a user."""
    held_out_limit: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Maximum number of held-out examples of one user; by default no limit."""
    held_out_from: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Probability that a user has held-out examples."""
    preparation: tuple[AnyStep, ...] = ()
    """Steps between source and tokenizer: `docs/data.md#steps-of-a-preparation`."""
    canaries: CanaryConfig | None = None
    """Planted users, for an attack to find."""
    made_up_by: str | None = None
    """The method that made up the users, if they are not people."""

    @property
    def unit(self) -> str:
        """The protected party of an ε, in words."""
        noun = "owner" if self.co_owned else "user"
        return noun if self.made_up_by is None else f"hypothetical {noun}"

    @property
    def users_from(self) -> str:
        """The column that names the users; `owners_column` if only owners are named."""
        given = (self.user_column, self.owners_column, SPEAKER)
        return next(column for column in given if column is not None)

    @property
    def text_from(self) -> str:
        """The column with the texts, the conversations or the prompts."""
        return self.messages_column or self.prompt_column or self.text_column

    @property
    def co_owned(self) -> bool:
        """Whether a text can have owners besides its user."""
        return self.owners_column is not None or any(step.gives_owners for step in self.preparation)

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:  # noqa: ANN401  (before validation it is anything)
        name = given.get("recipe") if isinstance(given, dict) else None
        keys = with_recipe(name, given) if isinstance(name, str) else given
        if isinstance(keys, dict) and keys.get("source") == "shakespeare-chat":
            return {"messages_column": "messages", **keys}
        return keys

    @model_validator(mode="after")
    def _one_kind_of_text(self) -> DataConfig:
        pair = ["prompt_column", "completion_column"]
        pair.sort(key=lambda key: getattr(self, key) is None)
        if (self.prompt_column is None) != (self.completion_column is None):
            raise ValueError(f"{pair[0]} = {getattr(self, pair[0])!r}: needs {pair[1]} too")
        default = DataConfig.model_fields["text_column"].default
        columns = [key for key in _TEXT_COLUMNS if getattr(self, key) not in (None, default)]
        if len(columns) > 1:
            raise ValueError(
                f"{' and '.join(columns)}: texts have one kind; give one of these keys"
            )
        needed = {"assistant": "messages_column", "completion": "prompt_column"}.get(self.counted)
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"loss_on = {self.loss_on!r}: needs data.{needed}")
        if self.cutting == "join" and self.sequence_length < 3:
            raise ValueError(
                f'sequence_length = {self.sequence_length}: cutting = "join" needs at least 3, '
                "so that every example has a token to predict"
            )
        for key in ("chat_template", "drop_refused"):
            if self.text_kind == "text" and (value := getattr(self, key)):
                raise ValueError(
                    f"{key} = {value!r}: only conversations use a chat template; give "
                    "messages_column, or prompt_column and completion_column"
                )
        changing = [step.step for step in self.preparation if step.changes_text]
        if self.text_kind != "text" and changing:
            raise ValueError(
                f"preparation: {', '.join(changing)}: changes plain texts, not conversations; "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _one_text_of_several(self) -> DataConfig:
        if self.owners_separator is not None and self.owners_column is None:
            raise ValueError(
                f"owners_separator = {self.owners_separator!r}: needs owners_column too"
            )
        if self.co_owned:
            with about("preparation: "):
                check_owners(self.preparation)
            if self.cutting == "join":
                raise ValueError(
                    'cutting = "join": would make one example of texts with different owners; '
                    'take "split" or "truncate"'
                )
            if self.canaries is not None:
                raise ValueError("canaries: do not work with texts of several owners; remove them")
        return self

    @property
    def text_kind(self) -> TextKind:
        """The kind of the texts: plain, lists of messages, or prompts with completions."""
        if self.messages_column is not None:
            return "messages"
        return "text" if self.prompt_column is None else "prompt"

    @property
    def counted(self) -> LossOn:
        """The tokens that count in the loss: `loss_on`, or the default for the kind of texts."""
        return self.loss_on or _COUNTED[self.text_kind]
