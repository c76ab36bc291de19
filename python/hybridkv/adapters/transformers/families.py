# SPDX-License-Identifier: Apache-2.0
"""What is known of each architecture: where its cache layers keep a group's rows, and whether a window can be replayed.

Measured on real models, not read off shapes: an architecture that is not here is refused. Attribute names are
those of transformers 5.8 to 5.24; a path ``a.b`` is entry ``b`` of the dict ``a``, and a path to a dict stands for
all of its entries (linear-attention layers kept one tensor up to 5.8 and a dict of them later).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridkv.errors import UnsupportedModel


@dataclass(frozen=True)
class Rows:
    """A tensor of a cache layer, seen as rows of a page.

    Attributes
    ----------
    path : str
        Attribute of the layer, ``name`` or ``name.entry``.
    axis : int or None
        Axis of the rows, the batch being axis 0; None: the whole tensor is one row.
    dead_columns : int
        Columns at the start of the last axis that no later step reads. They are not kept.
    """

    path: str
    axis: int | None
    dead_columns: int = 0


@dataclass(frozen=True)
class Copy:
    """A tensor that repeats another one.

    Attributes
    ----------
    path, of : str
        The attribute, and the one that it repeats bit for bit.
    """

    path: str
    of: str


Parts = Mapping[str, tuple[Rows, ...]]
"""By part of a group's page (see :class:`~hybridkv.CacheGroup`); the only part of a page without parts is ""."""


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes
    ----------
    groups : mapping of str to Parts
        By name of the cache group, as :meth:`CacheSpec.from_config` names them.
    copies : tuple of Copy
        Tensors that are not kept, since others repeat them.
    single_steps : bool
        With torch's own kernels tokens must go in one by one after the first forward. What holds for a model at
        hand is found out by a trial (:mod:`.trial`).
    replay : bool
        A window that is gone can be rebuilt from stored history (:mod:`.replay`).
    """

    groups: Mapping[str, Parts]
    copies: tuple[Copy, ...] = ()
    single_steps: bool = False
    replay: bool = False
    rows: tuple[tuple[str, str, Rows], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        flat = ((g, p, r) for g, parts in self.groups.items() for p, rows in parts.items() for r in rows)
        object.__setattr__(self, "rows", tuple(flat))


_KEYS_VALUES: Parts = {"": (Rows("keys", 2), Rows("values", 2))}
_ATTENTION: dict[str, Parts] = {"kv": _KEYS_VALUES, "swa": _KEYS_VALUES}
# The layer keeps as many inputs as its kernel is wide, and the oldest has had its last use.
_RECURRENT: dict[str, Parts] = {
    "kv": _KEYS_VALUES,
    "state": {"conv": (Rows("conv_states", None, dead_columns=1),), "matrix": (Rows("recurrent_states", None),)},
}


def _gated(name: str, entry: str) -> tuple[Rows, ...]:
    return Rows(f"{name}_kv.{entry}", 1), Rows(f"{name}_gate.{entry}", 1)


_DEEPSEEK_V4 = Family(
    {
        "csa": {"": (Rows("compressed_kv.compressor", 1),)},
        "hca": {"": (Rows("compressed_kv.compressor", 1),)},
        "indexer": {"": (Rows("compressed_kv.indexer", 1),)},
        "swa": {"": (Rows("keys", 2),)},
        "overlap": {"csa": _gated("overlap", "compressor"), "indexer": _gated("overlap", "indexer")},
        "pending": {"csa": _gated("buffer", "compressor"), "indexer": _gated("buffer", "indexer")},
        "hca_tail": {"hca": _gated("buffer", "compressor")},
    },
    copies=(Copy("values", of="keys"),),
    replay=True,
)

FAMILIES: dict[str, Family] = {
    "bamba": Family(_RECURRENT),
    "deepseek_v32": Family({"kv": _KEYS_VALUES, "indexer": {"": (Rows("indexer_keys", 1),)}}),
    "deepseek_v4": _DEEPSEEK_V4,
    "gemma3_text": Family(_ATTENTION, replay=True),
    "gpt_oss": Family(_ATTENTION, replay=True),
    "jamba": Family(_RECURRENT, single_steps=True),
    "llama": Family(_ATTENTION),
    "nemotron_h": Family(_RECURRENT),
    "qwen3_5_text": Family(_RECURRENT),
    "qwen3_next": Family(_RECURRENT),
}
"""By ``model_type`` of the text model's configuration."""


LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies depend on how long the whole sequence is: keys of a short prompt are no
prefix of those of a long one."""


def require_prefix_rope(config: Mapping[str, object]) -> None:
    """Refuse a configuration whose keys depend on what comes after them.

    Parameters
    ----------
    config : mapping
        Of the text model.

    Raises
    ------
    UnsupportedModel
        A rotary embedding of :data:`LENGTH_DEPENDENT_ROPE`, for all layers or for one type of them.
    """
    for field_name in ("rope_parameters", "rope_scaling"):
        told = config.get(field_name)
        each = [told, *told.values()] if isinstance(told, Mapping) else []
        for entry in each:
            kind = (entry.get("rope_type") or entry.get("type")) if isinstance(entry, Mapping) else None
            if kind in LENGTH_DEPENDENT_ROPE:
                expected = "a rotary embedding that does not depend on the length of the sequence"
                raise UnsupportedModel(field_name, expected, kind, model_type=config.get("model_type"))


def family_of(model_type: object) -> Family:
    """Return what is known of an architecture.

    Parameters
    ----------
    model_type : str
        As the configuration of the text model names it.

    Returns
    -------
    Family

    Raises
    ------
    UnsupportedModel
        It is not known here.
    """
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnsupportedModel("model_type", f"one of {', '.join(FAMILIES)}", model_type, model_type=model_type)
    return family
