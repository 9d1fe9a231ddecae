"""Neighbouring relations: the pairs of data sets that a guarantee makes indistinguishable."""

from __future__ import annotations

from enum import Enum

from dp_accounting import NeighboringRelation


class Relation(Enum):
    """The meaning of "two data sets differ by one user".

    | relation | the neighbour | what is not hidden |
    |---|---|---|
    | add-or-remove-one | has one user more or fewer | nothing about a user |
    | zero-out-one | has the same users, one of whom contributes zeros | the number of users |
    | replace-one | has one user's data replaced by any other | the number of users |

    Replacing is removing and adding: the strongest of the three, at the same noise the dearest.
    A noise multiplier is always the noise over what *one user can add*; what replacing moves,
    twice as much, is the accountant's business.
    """

    ADD_OR_REMOVE = "add-or-remove-one"
    ZERO_OUT = "zero-out-one"
    REPLACE = "replace-one"

    @property
    def phrase(self) -> str:
        """The words of reports and statements.

        Examples:
            >>> Relation.ADD_OR_REMOVE.phrase
            'add-or-remove-one user'
        """
        return f"{self.value} user"

    @property
    def of_dp_accounting(self) -> NeighboringRelation:
        """The same relation in dp_accounting's terms."""
        return {
            Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
            Relation.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
            Relation.REPLACE: NeighboringRelation.REPLACE_ONE,
        }[self]
