# SPDX-License-Identifier: Apache-2.0
"""Reading a configuration: named fields with named refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hybridkv.coverage import SIZE_LIMIT
from hybridkv.errors import UnsupportedModel
from hybridkv.group import MOST_LAYERS

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of one element, by the names that configurations use."""

DEEPEST = 8
"""Lists and mappings inside one another, in a field that is read."""

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"


class ConfigReader:
    """Named fields of a configuration; a refusal is an :class:`UnsupportedModel` that tells what was read.

    Parameters
    ----------
    config : mapping
        A configuration.
    defaults : mapping, optional
        What the model's configuration class gives to fields that published files leave out.
    outer : ConfigReader, optional
        The configuration that this one is nested in; asked for the dtype alone.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        defaults: Mapping[str, object] | None = None,
        outer: ConfigReader | None = None,
    ) -> None:
        self._fields = {**(defaults or {}), **config}
        self._config = config
        self._outer = outer

    def text(self, defaults: Mapping[str, object] | None = None) -> ConfigReader:
        """Return the reader of the text model: of ``text_config`` where there is one, else of this."""
        nested = self._config.get("text_config")
        if nested is None:
            return ConfigReader(self._config, defaults, self._outer)
        if not isinstance(nested, Mapping):
            raise self.refuse("text_config", "a mapping")
        return ConfigReader(nested, defaults, self)

    def refuse(self, field: str, expected: object, got: object = None) -> UnsupportedModel:
        """Return the refusal of a field, to be raised; ``got`` is what was read there unless given."""
        top = self._outer or self
        return UnsupportedModel(
            field,
            expected,
            self._fields.get(field) if got is None else got,
            architectures=top._config.get("architectures"),
            model_type=top._config.get("model_type"),
        )

    def get(self, field: str) -> object:
        """Return what a field holds, or None; refuse what no JSON file can hold."""
        value = self._fields.get(field)
        if not _is_plain(value):
            raise self.refuse(field, "numbers, strings, lists and mappings")
        return value

    def __contains__(self, field: object) -> bool:
        """Tell whether the configuration itself names the field, null included."""
        return field in self._config

    def has(self, field: str) -> bool:
        """Tell whether the configuration itself names the field, with a value."""
        return self._config.get(field) is not None

    def positive(self, *names: str) -> int:
        """Return an int >= 1 from the first of these fields that has a value; they may not contradict.

        It is below 2**48; ``num_hidden_layers`` is at most 10,000.
        """
        found = {name: value for name in names if (value := self.get(name)) is not None}
        for name, value in found.items():
            most = MOST_LAYERS if name == "num_hidden_layers" else SIZE_LIMIT - 1
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise self.refuse(name, f"an int, 1 to {most}", value)
        if not found:
            raise self.refuse(names[0], "an int >= 1")
        if len(set(found.values())) > 1:
            raise self.refuse(names[0], "fields that agree", found)
        return int(next(iter(found.values())))  # type: ignore[call-overload, no-any-return]

    def optional_positive(self, *names: str) -> int | None:
        """As :meth:`positive`, or None where no field has a value."""
        return self.positive(*names) if any(self.get(name) is not None for name in names) else None

    def absent(self, field: str, why: str) -> None:
        """Refuse a field that has a value which the family does not know."""
        if self.get(field):
            raise self.refuse(field, f"no value: {why}")

    def number(self, field: str) -> float | None:
        """Return a number as a float, or None where the field has no value."""
        value = self.get(field)
        return None if value is None else self.finite(field, value)

    def finite(self, field: str, value: object) -> float:
        """Return a number that was read from a field as a float; refuse one that is negative or not finite."""
        if not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < math.inf:
            try:
                return float(value)
            except OverflowError:
                pass
        raise self.refuse(field, "a number, finite and at least 0", value)

    def names(self, field: str, count: int, known: Sequence[str]) -> list[str] | None:
        """Return a list of ``count`` known names, or None where the field has no value."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or len(value) != count:
            raise self.refuse(field, f"a list of {count} names, one per layer")
        for name in value:
            if not isinstance(name, str) or name not in known:
                raise self.refuse(field, f"names out of {', '.join(known)}", name)
        return list(value)

    def own_dtype(self, published: str | None = None) -> str:
        """Return the configuration's own dtype.

        Parameters
        ----------
        published : str, optional
            The dtype of models whose published files name none.
        """
        for reader in (self, self._outer):
            if reader is None:
                continue
            both = {name: reader.dtype_name(name) for name in ("dtype", "torch_dtype")}
            found = {name: value for name, value in both.items() if value is not None}
            values = {value.removeprefix("torch.") for value in found.values()}
            if len(values) > 1:
                raise self.refuse("dtype", "fields that agree", found)
            if values:
                return self._known_dtype("torch_dtype" if "torch_dtype" in found else "dtype", values.pop())
        return self._known_dtype("dtype", published)

    def row_dtype(self, dtype: str, published: str | None = None) -> str:
        """Return the dtype of rows that have no published FP8 format: for "fp8" the configuration's own."""
        return self.own_dtype(published) if dtype == "fp8" else dtype

    def state_dtype(self, *names: str) -> str:
        """Return the dtype of a recurrent state: what the configuration names, else float32.

        float32 because states accumulate over the whole prefix; engines keep them so.
        """
        for name in names:
            value = self.dtype_name(name)
            if value is not None and value != "auto":
                return self._known_dtype(name, value)
        return "float32"

    def dtype_name(self, field: str) -> str | None:
        """Return the name of a dtype, or None; a dtype of torch itself is known by its text."""
        value = self._fields.get(field)
        if value is None or isinstance(value, str):
            return value
        if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
            return str(value)
        raise self.refuse(field, f"one of {', '.join(ELEMENT_BYTES)}", value)

    def _known_dtype(self, field: str, value: object) -> str:
        if not isinstance(value, str) or value not in ELEMENT_BYTES:
            raise self.refuse(field, f"one of {', '.join(ELEMENT_BYTES)}", value)
        return value


def _is_plain(value: object, depth: int = 0) -> bool:
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    if depth == DEEPEST:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(item, depth + 1) for name, item in value.items())
    return isinstance(value, (list, tuple)) and all(_is_plain(item, depth + 1) for item in value)
