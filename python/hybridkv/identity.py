# SPDX-License-Identifier: Apache-2.0
"""Identity: what must be equal, besides the tokens, before bytes may be reused."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from hybridkv.errors import SpecError


@dataclass(frozen=True)
class Identity:
    """The part of a key that is not tokens. Keys of different identities never match.

    Parameters
    ----------
    model : str
        Name of the model.
    weights : str
        Revision of the weights.
    adapter : str
        Name and revision of an adapter (LoRA), empty without one.
    salt : bytes
        Separates tenants. Where they are hostile to one another it must be secret and set by the
        gateway: without it nobody can compute a key, nor search for two token sequences of one key. It
        is not shown by ``repr``.
    extra : bytes
        Whatever else changes the bytes: a tokenizer's revision, a rope setting.

    Raises
    ------
    SpecError
        If a field is None or of another type.

    Examples
    --------
    >>> Identity("gemma-3-1b", weights="r1") == Identity("gemma-3-1b", weights="r2")
    False
    """

    model: str = ""
    weights: str = ""
    adapter: str = ""
    salt: bytes = field(default=b"", repr=False)
    extra: bytes = b""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            kind = bytes if spec.name in ("salt", "extra") else str
            if not isinstance(value, kind):
                got = "None" if value is None else type(value).__name__
                raise SpecError(f"identity.{spec.name}", kind.__name__, got)

    def parts(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The five fields as bytes, in the order in which the root of a key frames them."""
        return (
            self.model.encode("utf-8", "surrogatepass"),
            self.weights.encode("utf-8", "surrogatepass"),
            self.adapter.encode("utf-8", "surrogatepass"),
            bytes(self.salt),
            bytes(self.extra),
        )
