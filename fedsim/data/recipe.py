"""Recipes: the papers' data sets with the papers' own preparation, as small declarative files."""

from __future__ import annotations

import difflib
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedsim.utils.section import Section

FOLDER = Path(__file__).parent / "recipes"

Text = Annotated[str, Field(min_length=1)]


class Recipe(Section):
    """One file of the folder `recipes`.

    Attributes:
        description: what the set is and what a user is, in a sentence.
        follows: the paper and section whose preparation it is.
        differs: where it cannot follow, or the paper does not say.
        licence: what the texts may be used for, as far as their keepers say.
        local_copy: how to have it without the hub.
        data: keys of the config's [data]; without `source` where no hub holds the set.
    """

    description: Text
    follows: Text
    differs: Text
    licence: Text
    local_copy: Text
    data: dict[str, Any]


def recipe_names() -> list[str]:
    """Return the names of all recipes, in the order of the alphabet."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@lru_cache
def load_recipe(name: str) -> Recipe:
    """Read a recipe.

    Raises:
        ValueError: there is none of this name; the message has the nearest.
    """
    known = recipe_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise ValueError(f"recipe = {name!r}: unknown; {hint}")
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return Recipe.model_validate(tomllib.loads(text))


def with_recipe(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of [data] with the recipe's under the given ones.

    Raises:
        ValueError: no such recipe; one whose texts are on no hub, without a source.
    """
    recipe = load_recipe(name)
    keys = {**recipe.data, **given}
    if "source" not in keys:
        raise ValueError(
            f"recipe = {name!r}: no hub holds this set; give data.source a local copy: "
            f"{recipe.local_copy}"
        )
    return keys
