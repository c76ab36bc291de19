# SPDX-License-Identifier: Apache-2.0
"""Keys: 128-bit names of the units of a token sequence.

Equal keys mean equal identity, unit and tokens from the start. The definition is in
``csrc/layout/key_chain.h``; it is SHA-256 of framed messages, the same in every process.
"""

from __future__ import annotations

import array
import operator
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
import numpy.typing as npt

from hybridkv import _core
from hybridkv.errors import ArgumentError
from hybridkv.identity import Identity

#: Version of the definition of keys. Keys of different profiles never match.
KEY_PROFILE: int = _core.key_profile

_PLAIN = Identity()
_DLPACK_CPU = (1, 3)  # kDLCPU, and kDLCUDAHost: pinned host memory


@runtime_checkable
class _DLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


Tokens = Sequence[int] | npt.NDArray[np.integer[Any]] | memoryview | _DLPack
MediaSpan = tuple[int, int, bytes]


class BlockKeys:
    """Keys of the units of one sequence, made by :func:`block_keys` or :meth:`from_hashes`.

    Immutable. ``len(keys)`` counts whole units. ``keys[i:j]`` is a slice of whole units, still chained to
    what precedes it, without the partial rest; ``keys[i:]`` keeps the rest. ``==`` compares the digests
    (and, where there is one, the partial rest).
    """

    __slots__ = ("__weakref__", "_core", "_identity", "_rest_media")

    def __init__(self, core: _core.KeyChain, identity: Identity | None, rest_media: tuple[MediaSpan, ...] = ()) -> None:
        self._core = core
        self._identity = identity
        self._rest_media = rest_media  # spans that begin in the partial rest, which a continuation replaces

    @classmethod
    def from_hashes(cls, hashes: Sequence[bytes] | npt.NDArray[np.uint8], unit_tokens: SupportsIndex) -> BlockKeys:
        """Keys out of an engine's own chained hashes. Such keys have no tips and cannot be continued.

        Parameters
        ----------
        hashes : sequence of bytes, or array
            One hash per unit, 16 bytes or more each, of which the first 16 are kept; as an array uint8
            [[units, 16 or more]]. A hash must cover everything before its unit, and the identity.
        unit_tokens : int
            Tokens that one hash covers.

        Raises
        ------
        ArgumentError
            For anything else; ``got`` names the index of the first bad hash.
        """
        if isinstance(hashes, np.ndarray):
            if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] < 16:
                got = f"{hashes.dtype} {list(hashes.shape)}"
                raise ArgumentError("hashes", "a uint8 array [[units, 16 or more]]", got)
            rows = np.ascontiguousarray(hashes[:, :16]).tobytes()
            items = [rows[at : at + 16] for at in range(0, len(rows), 16)]
        elif isinstance(hashes, Sequence) and not isinstance(hashes, (str, bytes, bytearray, memoryview)):
            try:
                items = list(hashes)
                if set(map(type, items)) != {bytes}:
                    items = [bytes(h) if isinstance(h, (bytearray, memoryview)) else h for h in items]
            except Exception as error:  # whatever the sequence's own code raises
                raise ArgumentError(
                    "hashes", "a sequence of bytes or a uint8 array", _failure(hashes, error)
                ) from error
        else:
            raise ArgumentError("hashes", "a sequence of bytes or a uint8 array", type(hashes).__name__)
        return cls(_core.KeyChain.from_hashes(items, _unit(unit_tokens)), None)

    @property
    def unit_tokens(self) -> int:
        """Tokens that one key names."""
        return self._core.unit_tokens

    @property
    def identity(self) -> Identity | None:
        """Identity in the root; None for an engine's own hashes, which carry their own."""
        return self._identity

    @property
    def tokens(self) -> int:
        """Where the keys end, in tokens from the start of the sequence, a partial last unit included."""
        return self._core.tokens

    @property
    def digests(self) -> npt.NDArray[np.uint8]:
        """uint8 [[units, 16]], a read-only view."""
        return self._core.digests

    def __len__(self) -> int:
        return self._core.end_unit - self._core.begin_unit

    def __getitem__(self, index: slice) -> BlockKeys:
        if not isinstance(index, slice):
            raise ArgumentError("index", "a slice of whole units", type(index).__name__)
        try:
            begin, end, step = index.indices(len(self))
        except Exception as error:  # TypeError, or whatever a bound's own __index__ raises
            raise ArgumentError("index", "a slice of integers", str(error)) from error
        if step != 1:
            raise ArgumentError("index", "a slice of step 1", f"step {step}")
        base = self._core.begin_unit
        core = self._core.slice(base + begin, base + max(begin, end), index.stop is None)
        return BlockKeys(core, self._identity, self._rest_media if core.rest_tokens else ())

    __iter__ = None  # a key by itself is a row of `digests`

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockKeys):
            return NotImplemented
        return self._core.equals(other._core)

    def __hash__(self) -> int:
        return hash(self._core.key_hash())

    def __repr__(self) -> str:
        core = self._core
        units = f"units {core.begin_unit}:{core.end_unit} of {core.unit_tokens} tokens"
        rest = f" + {core.rest_tokens} tokens" if core.rest_tokens else ""
        whose = self._identity if self._identity is not None else "an engine's hashes"
        return f"BlockKeys({units}{rest}, {whose})"


def block_keys(
    tokens: Tokens,
    unit_tokens: SupportsIndex,
    *,
    identity: Identity = _PLAIN,
    parent: BlockKeys | None = None,
    media: Sequence[MediaSpan] = (),
) -> BlockKeys:
    """Name every unit of a token sequence.

    Parameters
    ----------
    tokens : array or sequence
        Token ids, one dimension, 0 <= id < 2**32: a numpy array of any integer type, any stride; a torch
        CPU tensor; a memoryview of integers; list, tuple, range, ``array.array`` or another sequence
        of ints. Memory of numpy, torch and memoryviews is kept as a view, not copied, since tips are
        looked up in it later: do not write to it while the keys live. An ``array.array`` is copied,
        because a view would forbid it to grow. uint32 is hashed as it lies, other types through a small
        buffer.
    unit_tokens : int
        Tokens that one key names, 1 to 2**24.
    identity : Identity, default Identity()
        What else must be equal.
    parent : BlockKeys, optional
        Keys to continue, of the same unit and identity. `tokens` are then the new ones after the parent's
        whole units, its partial rest is replaced, and nothing is hashed twice.
    media : sequence of (offset, length, digest)
        Tokens [offset, offset + length) of the whole sequence stand for an image or sound whose content
        has this digest (bytes). Keys change from the first unit touched. The parent's media are kept
        and may be given again; of a slice ``keys[:j]``, those that begin before its end. Of those that lie in
        the partial rest, which `tokens` replaces, one is dropped that begins behind the last token or that a
        given one overlaps. ``parent=keys[:len(keys)]`` drops them all.

    Returns
    -------
    BlockKeys
        Keys of the whole sequence from its start, the parent's units included.

    Raises
    ------
    ArgumentError
        If an argument is not as above; nothing has changed. For an id out of range ``got`` names its index.

    Examples
    --------
    >>> import numpy as np
    >>> keys = block_keys(np.arange(70, dtype=np.uint32), 16)
    >>> len(keys), keys.tokens, keys.digests.shape
    (4, 70, (4, 16))
    >>> block_keys(range(64, 100), 16, parent=keys) == block_keys(range(100), 16)
    True
    """
    unit = _unit(unit_tokens)
    if not isinstance(identity, Identity):
        raise ArgumentError("identity", "an Identity", type(identity).__name__)
    ids = readable_ids(tokens)
    spans = _spans(media)
    if parent is None:
        core = _core.KeyChain.build(ids, unit, identity.parts(), spans, identity.fingerprint)
        return BlockKeys(core, identity, _in_rest(core, spans))
    if not isinstance(parent, BlockKeys):
        raise ArgumentError("parent", "BlockKeys", type(parent).__name__)
    if parent.unit_tokens != unit:
        raise ArgumentError("parent", f"keys of unit {unit}", f"keys of unit {parent.unit_tokens}")
    if parent.identity is None:
        raise ArgumentError("parent", "keys made from tokens", "keys made from hashes")
    if fields := identity.differences(parent.identity):
        salts = (" and of its salt", " of another salt") if "salt" in fields else ("", "")  # of which nothing is told
        expected, got = (f"keys of {one}{salt}" for one, salt in zip((identity, parent.identity), salts, strict=True))
        raise ArgumentError("parent", expected, got, fields=fields)
    base = parent._core
    if parent._rest_media:
        end = base.end_unit * unit + len(ids)
        given = [(at, at + n) for at, n, _ in spans]
        kept = (
            span
            for span in parent._rest_media
            if span[0] < end and not any(at < span[0] + span[1] and span[0] < to for at, to in given)
        )
        spans = (*spans, *kept)
        base = base.slice(base.begin_unit, base.end_unit, False)  # without the rest and its media
    core = base.extend(ids, spans)
    return BlockKeys(core, identity, _in_rest(core, spans))


def _in_rest(core: _core.KeyChain, spans: tuple[MediaSpan, ...]) -> tuple[MediaSpan, ...]:
    start = core.end_unit * core.unit_tokens
    return tuple(span for span in spans if span[0] >= start)


def _failure(value: object, error: Exception) -> str:
    """What an object's own code raised while it was read."""
    return f"{type(value).__module__}.{type(value).__name__}: {type(error).__name__}: {error}"


def _unit(unit_tokens: SupportsIndex) -> int:
    try:
        if isinstance(unit_tokens, bool):
            raise TypeError
        unit = operator.index(unit_tokens)
    except Exception:  # TypeError, or whatever an object's own __index__ raises
        raise ArgumentError("unit_tokens", "an int", type(unit_tokens).__name__) from None
    if not 1 <= unit <= 2**24:
        raise ArgumentError("unit_tokens", "1 <= unit_tokens <= 2**24", unit)
    return unit


def readable_ids(tokens: Any) -> Any:
    """What the extension reads by itself: a list, a tuple, or an object with a buffer of integers."""
    try:
        return _read(tokens)
    except (ArgumentError, MemoryError):
        raise
    except Exception as error:  # whatever a sequence, a buffer or an array interface of others raises
        raise ArgumentError("tokens", "an integer array or sequence of ids", _failure(tokens, error)) from error


def _read(tokens: Any) -> Any:
    if isinstance(tokens, (list, tuple)):
        return tokens
    if isinstance(tokens, np.ndarray):
        return _integers(tokens)
    if isinstance(tokens, memoryview):
        return _integers(np.asarray(tokens)) if tokens.format[:1] in (">", "!") else tokens
    if isinstance(tokens, array.array):
        return _integers(np.array(tokens))
    if isinstance(tokens, (str, bytes, bytearray)):
        raise ArgumentError("tokens", "an integer array or sequence of ids", type(tokens).__name__)
    if isinstance(tokens, _DLPack):
        return _from_dlpack(tokens)
    if hasattr(tokens, "__array_interface__"):
        return _integers(np.asarray(tokens))
    if isinstance(tokens, Sequence):
        return list(tokens)
    raise ArgumentError("tokens", "an integer array or sequence of ids", type(tokens).__name__)


def _integers(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if ids.dtype.kind not in "iu":
        if ids.size == 0 and ids.ndim == 1:  # np.array([]) is float64, and holds no wrong id
            return ids.astype(np.uint32)
        raise ArgumentError("tokens", "an integer array or sequence of ids", f"an array of {ids.dtype}")
    if ids.ndim != 1:
        raise ArgumentError("tokens", "one dimension", f"shape {list(ids.shape)}")
    return ids if ids.dtype.isnative else ids.astype(ids.dtype.newbyteorder("="))


def _from_dlpack(tokens: _DLPack) -> npt.NDArray[Any]:
    name = f"{type(tokens).__module__}.{type(tokens).__name__}"
    try:
        kind = int(tokens.__dlpack_device__()[0])
    except Exception as error:
        raise ArgumentError("tokens", "ids in host memory", _failure(tokens, error)) from error
    if kind not in _DLPACK_CPU:
        got = f"{name} on {getattr(tokens, 'device', f'DLPack device {kind}')}"
        raise ArgumentError("tokens", "ids in host memory (a copy from a device would wait for it)", got)
    try:
        ids = np.from_dlpack(tokens)
    except Exception as error:
        raise ArgumentError("tokens", "an integer tensor", _failure(tokens, error)) from error
    return _integers(ids)


def _spans(media: Sequence[MediaSpan]) -> tuple[tuple[int, int, bytes], ...]:
    expected = "spans (offset, length, digest)"
    if isinstance(media, (str, bytes)) or not isinstance(media, Sequence):
        raise ArgumentError("media", expected, type(media).__name__)
    try:
        listed = list(media)
    except Exception as error:  # whatever the sequence's own code raises
        raise ArgumentError("media", expected, _failure(media, error)) from error
    spans = []
    for index, span in enumerate(listed):
        try:
            offset, length, digest = span
            if isinstance(offset, bool) or isinstance(length, bool):
                raise TypeError("bool")
            at, n = operator.index(offset), operator.index(length)
            if not isinstance(digest, (bytes, bytearray, memoryview)):
                raise TypeError(f"digest {type(digest).__name__}")
            if not (0 <= at < 2**62 and 1 <= n < 2**62):
                raise ValueError(f"({at}, {n}, ...)")
            spans.append((at, n, bytes(digest)))
        except Exception as error:  # whatever is in the span raises
            raise ArgumentError("media", expected, f"{error} at index {index}") from error
    return tuple(spans)
