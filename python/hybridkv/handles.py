# SPDX-License-Identifier: Apache-2.0
"""What owners of pins, pages and pools have in common."""

from __future__ import annotations

from typing import NoReturn


class Uncopied:
    """An owner: a copy of it would give back what the original still holds, so there is none."""

    __slots__ = ()

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: an owner of pins or pages cannot be copied or pickled")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()
