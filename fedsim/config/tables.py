"""Open tables: a key such as `kind` names an entry point, and the part checks the table's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.errors import ConfigError
from fedsim.registry import distribution, is_own, names, part
from fedsim.utils.section import Section

UNKNOWN_PART = "unknown_part"
"""Pydantic's type of the error for a name that no package registered."""


@dataclass(frozen=True)
class OpenTable:
    """Annotates a table of the config whose keys depend on one of them.

    The table has the keys of its annotated class, and those of the `options` of the named part, a
    subclass. A part without `options` has no keys of its own.

    Attributes:
        group: of entry points, such as "samplers".
        field: the dotted key that names the part, such as "strategy.sampling.kind".
    """

    group: str
    field: str

    @property
    def tag(self) -> str:
        """The last part of `field`."""
        return self.field.rpartition(".")[2]

    def options(self, base: type[Section], given: object) -> type[Section]:
        """Return the class that checks a table; `base` where it names no part.

        Raises:
            ConfigError: the table names a part that is not registered.
        """
        default = base.model_fields[self.tag].default
        name = given.get(self.tag, default) if isinstance(given, Mapping) else default
        if not isinstance(name, str):
            return base
        options: type[Section] = getattr(part(self.group, name, self.field), "options", base)
        return options

    def built_in(self, base: type[Section]) -> dict[str, type[Section]]:
        """Return the options of each part that fedsim brings."""
        own = [name for name in names(self.group) if is_own(distribution(self.group, name))]
        return {name: self.options(base, {self.tag: name}) for name in own}

    def __get_pydantic_core_schema__(
        self, base: type[Section], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema that validates a table by the options of its part, and dumps it all."""

        def validated(given: object) -> object:
            if not isinstance(given, Mapping):
                return given
            try:
                options = self.options(base, given)
            except ConfigError as error:
                raise PydanticCustomError(UNKNOWN_PART, "{why}", {"why": str(error)}) from None
            return options.model_validate({k: v for k, v in given.items() if v is not None})

        return core_schema.no_info_before_validator_function(
            validated, handler(base), serialization=core_schema.simple_ser_schema("any")
        )
