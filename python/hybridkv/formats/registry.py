# SPDX-License-Identifier: Apache-2.0
"""The registry: formats that engines are known to write, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.format_entry import FormatEntry
from hybridkv.formats.known_pages import PAGES
from hybridkv.formats.known_rows import ROWS
from hybridkv.formats.known_states import STATES
from hybridkv.formats.kv_format import KvFormat


class Registry(Mapping[str, FormatEntry]):
    """Entries by name, in the order in which they were declared.

    Examples
    --------
    >>> from hybridkv.formats import REGISTRY
    >>> REGISTRY["fp8_ds_mla_v4"].format.row_bytes
    584
    >>> REGISTRY["fp8_ds_mla_v5"]
    Traceback (most recent call last):
    ...
    hybridkv.errors.ArgumentError: format: expected the name of a registered format (near: fp8_ds_mla_v4, \
fp8_ds_mla_v32, fp8_ds_mla_v4_vllm), got fp8_ds_mla_v5
    """

    def __init__(self, entries: Iterable[FormatEntry]) -> None:
        self._entries: dict[str, FormatEntry] = {}
        for entry in entries:
            if entry.name in self._entries:
                raise SpecError("registry", "entries of different names", entry.name)
            self._entries[entry.name] = entry

    def __getitem__(self, name: str) -> FormatEntry:
        """Return the entry of a name. Raises ArgumentError, with near names, where there is none."""
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            near = difflib.get_close_matches(str(name), self._entries, n=3, cutoff=0.5)
            expected = "the name of a registered format" + (f" (near: {', '.join(near)})" if near else "")
            raise ArgumentError("format", expected, name) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def get(self, name: str, default: FormatEntry | None = None) -> FormatEntry | None:  # type: ignore[override]
        """Return the entry of a name, or a default."""
        return self._entries[name] if name in self else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def named(self, made: KvFormat) -> tuple[str, ...]:
        """Return the names of the entries that a format agrees with in every field that the entry declares.

        Parameters
        ----------
        made : KvFormat
            Such as one of a spec, which declares what its model decides too.
        """
        has = made.declared()
        return tuple(
            name
            for name, entry in self._entries.items()
            if all(has.get(field) == value for field, value in entry.format.declared().items() if field != "schema")
        )


REGISTRY = Registry((*ROWS, *PAGES, *STATES))
"""Every named format of this version of the library."""
