"""Open tables: a key such as `kind` names a part (an entry point), which checks the other keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.errors import ConfigError
from fedsim.registry import distribution, is_own, names, part
from fedsim.utils.section import Section

UNKNOWN_PART = "unknown_part"
"""Pydantic error type for a part that no package registered."""


@dataclass(frozen=True)
class OpenTable:
    """Annotates a table of the config in which one key names a part.

    A part may have `options`, a subclass of the annotated class; then these are the table's keys.
    A part without `options` adds no keys.

    Attributes:
        group: group of entry points, such as "samplers".
        field: the dotted key that names the part, such as "strategy.sampling.kind".
    """

    group: str
    field: str

    @property
    def tag(self) -> str:
        """The last part of `field`."""
        return self.field.rpartition(".")[2]

    def options(self, base: type[Section], table: object) -> type[Section]:
        """Return the class that checks `table`; `base` if its tag is not a string.

        Raises:
            ConfigError: the table names a part that is not registered.
        """
        default = base.model_fields[self.tag].default
        name = table.get(self.tag, default) if isinstance(table, Mapping) else default
        if not isinstance(name, str):
            return base
        options: type[Section] = getattr(part(self.group, name, self.field), "options", base)
        return options

    def built_in(self, base: type[Section]) -> dict[str, type[Section]]:
        """Return the options of each part of fedsim, by name."""
        own = [name for name in names(self.group) if is_own(distribution(self.group, name))]
        return {name: self.options(base, {self.tag: name}) for name in own}

    def __get_pydantic_core_schema__(
        self, base: type[Section], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return a schema that validates with the part's options and serialises all keys."""

        def validated(table: object) -> object:
            if not isinstance(table, Mapping):
                return table
            try:
                options = self.options(base, table)
            except ConfigError as error:
                raise PydanticCustomError(UNKNOWN_PART, "{why}", {"why": str(error)}) from None
            return options.model_validate({k: v for k, v in table.items() if v is not None})

        return core_schema.no_info_before_validator_function(
            validated, handler(base), serialization=core_schema.simple_ser_schema("any")
        )
