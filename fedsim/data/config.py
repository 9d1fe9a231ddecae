"""The config section `[data]`: where the text is, whose it is, and what becomes of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedsim.data.preparation.catalogue import AnyStep
from fedsim.data.recipe import with_recipe
from fedsim.utils.section import Fraction, Section


class CanaryConfig(Section):
    """Canary users, Kandpal et al. 2023, D.2: see `fedsim.data.canaries`.

    `num_users` users are planted, half of them are trained on. Each has `num_examples` examples,
    held-out ones counted, all with the same `shared_tokens` tokens somewhere in them.
    """

    num_users: Annotated[int, Field(ge=2)]
    num_examples: Annotated[int, Field(ge=1)]
    shared_tokens: Annotated[int, Field(ge=1, le=100)]


class DataConfig(Section):
    """Where the text is, whose it is, how it is prepared, and what is held out.

    A `recipe` gives the keys that are not given themselves.
    """

    recipe: str | None = None
    source: str = "shakespeare"
    user_column: str = "speaker"
    text_column: str = "text"
    sequence_length: Annotated[int, Field(ge=2)] = 64
    cutting: Literal["split", "truncate", "join"] = "split"
    held_out_examples: Fraction = 0.1
    held_out_users: Fraction = 0.0
    held_out_rule: Literal["random", "first", "last"] = "random"
    held_out_limit: Annotated[int, Field(ge=1)] | None = None
    preparation: tuple[AnyStep, ...] = ()
    canaries: CanaryConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:  # noqa: ANN401  (before validation it is anything)
        name = given.get("recipe") if isinstance(given, dict) else None
        return with_recipe(name, given) if isinstance(name, str) else given
