"""A step that makes one user of several names of one person."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from fedsim.data.preparation.step import Step
from fedsim.data.records import Record
from fedsim.errors import ConfigError
from fedsim.json_text import read_json


class MergeUsers(Step):
    """Rename users by a file of aliases, so that the unit is the person.

    `file` is a JSON object {alias: person} or a CSV with the columns alias and person; who is not
    in it keeps the name. Streams; in memory: the file.
    """

    step: Literal["merge-users"] = "merge-users"
    file: str

    def reads_files(self) -> tuple[str, ...]:
        """Return the file of aliases."""
        return (self.file,)

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield every record under the person's name; nothing is dropped."""
        person_of = self._aliases()
        for record in records:
            yield record._replace(user=person_of.get(record.user, record.user))

    def _aliases(self) -> dict[str, str]:
        path = Path(self.file).expanduser()
        try:
            aliases = _from_json(path) if path.suffix == ".json" else self._from_csv(path)
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise self._wrong(str(error)) from error
        # By its number: a message may end up in a log, where nobody's name has a place.
        for number, (alias, person) in enumerate(aliases.items(), start=1):
            if not alias or not isinstance(person, str) or not person.strip():
                raise self._wrong(
                    f"alias number {number}: no name, or no person's; wanted: two names"
                )
            # Which of two names is the person's would otherwise hang on the order of the file.
            if aliases.get(person, person) != person:
                raise self._wrong(f"alias number {number}: its person is an alias of another")
        return aliases

    def _from_csv(self, path: Path) -> dict[str, str]:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"alias", "person"} <= set(rows.fieldnames):
                raise ValueError("wanted: a CSV with the columns alias and person, or a .json")
            aliases: dict[str, str] = {}
            for row in rows:
                if aliases.setdefault(row["alias"], row["person"]) != row["person"]:
                    raise ValueError(f"line {rows.line_num}: an alias of another person before")
        return aliases

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"data.preparation: merge-users: file = {self.file!r}: {what}")


def _from_json(path: Path) -> dict[str, str]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError("wanted: a JSON object of alias to person")
    return content
