# SPDX-License-Identifier: Apache-2.0
"""Coverage rules: which tokens' bytes a resume at a length needs of one cache group.

These classes only *name* a rule. The rules themselves are written once, in ``csrc/layout/coverage.h``;
matching, requirements and restore plans all call them, so that what is looked up is what is stored.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, TypeAlias

from hybridkv.errors import SpecError

SIZE_LIMIT = 2**48
"""Every number of a spec, a size, a length or a count, is below it."""


def positive_int(field: str, value: object, limit: int = SIZE_LIMIT) -> int:
    """Return ``value`` as an int of at least 1.

    Parameters
    ----------
    field : str
        The name that an error tells.
    value : object
        Any integer, numpy's included; bool is refused.
    limit : int, optional
        What the value must be below.

    Returns
    -------
    int
        1 <= value < limit.

    Raises
    ------
    SpecError
        Not an integer, or out of range.
    """
    number = whole_number(value)
    if number is None or not 0 < number < limit:
        raise SpecError(field, f"an int >= 1, below 2**{limit.bit_length() - 1}", value)
    return number


def whole_number(value: object) -> int | None:
    """Return any integer, numpy's included, as an int; None for all else, bool included."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except Exception:  # TypeError, or whatever an object's own __index__ raises
        return None


def real_number(value: object) -> int | float | None:
    """Return any int or float, numpy's included, as Python's; None for all else, bool included."""
    if isinstance(value, (float, _of_numpy("floating"))):
        return float(value)
    return whole_number(value) if isinstance(value, (int, _of_numpy("integer"))) else None


def truth(value: object) -> bool | None:
    """Return any bool, numpy's included, as Python's; None for all else."""
    return bool(value) if isinstance(value, (bool, _of_numpy("bool_"))) else None


def _of_numpy(name: str) -> Any:
    """Return a type of numpy, to compare with; none where nobody has imported numpy, so that there is no such value."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else getattr(numpy, name)


@dataclass(frozen=True)
class Prefix:
    """Every block of [0, t).

    Examples
    --------
    >>> Prefix().rule, Prefix().parameter
    (0, 0)
    """

    rule: ClassVar[int] = 0

    @property
    def parameter(self) -> int:
        """The number that the rule takes: 0, unused."""
        return 0


@dataclass(frozen=True)
class Window:
    """The rows of the last min(t, tokens - 1) tokens.

    Parameters
    ----------
    tokens : int
        Size of the attention window in tokens, the querying token included; 1 needs no row.

    Raises
    ------
    SpecError
        ``tokens`` is not an int >= 1, below 2**48.

    Examples
    --------
    >>> Window(128).rule, Window(128).parameter
    (1, 128)
    """

    rule: ClassVar[int] = 1
    tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", positive_int("tokens", self.tokens))

    @property
    def parameter(self) -> int:
        """The number that the rule takes: the window in tokens."""
        return self.tokens


@dataclass(frozen=True)
class Chunk:
    """The rows from the start of t's chunk to t (chunked-local attention).

    Parameters
    ----------
    tokens : int
        Size of a chunk in tokens; chunks start at multiples of it.

    Raises
    ------
    SpecError
        ``tokens`` is not an int >= 1, below 2**48.

    Examples
    --------
    >>> Chunk(8192).rule, Chunk(8192).parameter
    (2, 8192)
    """

    rule: ClassVar[int] = 2
    tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", positive_int("tokens", self.tokens))

    @property
    def parameter(self) -> int:
        """The number that the rule takes: the chunk in tokens."""
        return self.tokens


@dataclass(frozen=True)
class Checkpoint:
    """The state exactly at t.

    Parameters
    ----------
    every : int, optional
        No state is needed where t is a multiple of it. None: a state is needed at every t > 0.

    Raises
    ------
    SpecError
        ``every`` is neither None nor an int >= 1, below 2**48.

    Examples
    --------
    >>> Checkpoint(every=128).rule, Checkpoint(every=128).parameter, Checkpoint().parameter
    (3, 128, 0)
    """

    rule: ClassVar[int] = 3
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            object.__setattr__(self, "every", positive_int("every", self.every))

    @property
    def parameter(self) -> int:
        """The number that the rule takes: ``every`` in tokens, or 0 for None."""
        return self.every or 0


Coverage: TypeAlias = Prefix | Window | Chunk | Checkpoint
