# SPDX-License-Identifier: Apache-2.0
"""Several groups in one call: mappings from group name to what a call of one group takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hybridkv.errors import KernelContract

Named = Mapping[str, npt.NDArray[Any] | None]


def by_group(required: Mapping[str, Any], optional: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Take the arguments of a call apart.

    Parameters
    ----------
    required : mapping of str to object
        Arguments by name: where the first is a mapping, all are, with the same group names.
    optional : mapping of str to object
        Arguments that may then be None, or mappings that lack names.

    Yields
    ------
    suffix : str
        What follows an argument's name in errors: ``"['kv']"``, or nothing for a call of one group.
    arguments : dict of str to object
        Of that group.

    Raises
    ------
    KernelContract
        A mapping where none may be, none where one must be, other names.
    """
    first = next(iter(required.values()))
    if not isinstance(first, Mapping):
        for name, value in {**required, **optional}.items():
            if isinstance(value, Mapping):
                raise KernelContract(name, "no mapping, as the pools are none", value)
        yield "", {**required, **optional}
        return
    for name, value in required.items():
        if not isinstance(value, Mapping) or set(value) != set(first):
            raise KernelContract(name, f"a mapping with the groups {list(first)}", value)
    for name, value in optional.items():
        if value is not None and (not isinstance(value, Mapping) or not set(value) <= set(first)):
            raise KernelContract(name, f"None or a mapping with groups of {list(first)}", value)
    for group in first:
        own = {name: value[group] for name, value in required.items()}
        yield f"[{_readable(group)}]", own | {name: (value or {}).get(group) for name, value in optional.items()}


def _readable(group: object) -> str:
    """Return a name as errors show it, whatever its text is."""
    return repr(group).encode("utf-8", "backslashreplace").decode("utf-8")


def require_apart(written: Iterable[Named], others: Iterable[Named]) -> None:
    """Refuse outputs that share memory with other arguments.

    Parameters
    ----------
    written : iterable of mapping of str to ndarray or None
        Outputs by the names that errors give them.
    others : iterable of the same
        What they must not touch; an output in it is not compared with itself.

    Raises
    ------
    KernelContract
        Names the output; ``got`` names the other.

    Notes
    -----
    What counts is the extent of an array, from its first byte to its last, gaps included.
    """
    against = {name: value for mapping in others for name, value in mapping.items()}
    for mapping in written:
        for name, ours in mapping.items():
            for other, theirs in against.items():
                if name != other and ours is not None and theirs is not None and np.may_share_memory(ours, theirs):
                    raise KernelContract(name, "memory of its own", f"memory of {other}")


def require_writable(name: str, value: npt.NDArray[Any]) -> None:
    """Refuse a read-only output by its name, with a :class:`KernelContract`."""
    if not value.flags.writeable:
        raise KernelContract(name, "an array that can be written", "a read-only one")
