# SPDX-License-Identifier: Apache-2.0
"""How tensor, pipeline and context ranks share a model, and which of them one is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from hybridkv.coverage import positive_int, whole_number
from hybridkv.errors import SpecError
from hybridkv.formats.kv_format import KvFormat

_REPLICATED = "replicated"
_AXES = ("tp", "pp", "dcp")
_POSITIONS = tuple(f"{axis}_rank" for axis in _AXES)


class _Formatted(Protocol):
    @property
    def format(self) -> KvFormat | None: ...


def all_replicated(groups: Iterable[_Formatted]) -> bool:
    """Tell whether the bytes of all groups are declared to be equal on every tensor rank."""
    return all(group.format is not None and group.format.shard == _REPLICATED for group in groups)


@dataclass(frozen=True)
class RankGeometry:
    """How ranks share a model, and which one this is. Ranks of one model make the same keys, and other bytes.

    Parameters
    ----------
    tp, pp, dcp : int
        Tensor, pipeline and context ranks.
    dcp_interleave : int
        Tokens that a context rank keeps in turn.
    tp_rank, pp_rank, dcp_rank : int
        Which of them this one is, from 0.

    Raises
    ------
    SpecError
        A number of ranks below 1, a rank that is none of them.

    Examples
    --------
    >>> RankGeometry(tp=8, tp_rank=3).alone
    False
    """

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    dcp_interleave: int = 1
    tp_rank: int = 0
    pp_rank: int = 0
    dcp_rank: int = 0

    def __post_init__(self) -> None:
        for name in (*_AXES, "dcp_interleave"):
            object.__setattr__(self, name, positive_int(f"manifest.ranks.{name}", getattr(self, name)))
        for axis, name in zip(_AXES, _POSITIONS, strict=True):
            rank, ranks = whole_number(getattr(self, name)), getattr(self, axis)
            if rank is None or not 0 <= rank < ranks:
                raise SpecError(f"manifest.ranks.{name}", f"an int from 0 to {ranks - 1}", getattr(self, name))
            object.__setattr__(self, name, rank)

    @property
    def alone(self) -> bool:
        """Whether one rank holds all."""
        return self == RankGeometry()

    def shares(self, *, replicated: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name by axis what decides which share of a model this rank holds; nothing of an axis that has one rank.

        Parameters
        ----------
        replicated : bool
            Of groups whose bytes are equal on every tensor rank: then tensor ranks decide nothing.

        Yields
        ------
        (str, tuple of int)
        """
        if self.tp > 1 and not replicated:
            yield "tp", (self.tp, self.tp_rank)
        if self.pp > 1:
            yield "pp", (self.pp, self.pp_rank)
        if self.dcp > 1 or self.dcp_interleave > 1:
            yield "dcp", (self.dcp, self.dcp_rank, self.dcp_interleave)

    def to_document(self) -> dict[str, int]:
        """Return it as an object of JSON; ranks are named where there are several, so that older texts stay."""
        names = [f.name for f in fields(self)]
        return {name: getattr(self, name) for name in names if not (self.alone and name in _POSITIONS)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RankGeometry:
        """Read what :meth:`to_document` returned, here or elsewhere.

        Raises
        ------
        SpecError
            Names that are missing or unknown, or values as above.
        """
        needed, known = {*_AXES, "dcp_interleave"}, {f.name for f in fields(cls)}
        if not needed <= document.keys() <= known:
            raise SpecError("manifest.ranks", ", ".join(sorted(known)), ", ".join(sorted(map(str, document))))
        return cls(**document)
