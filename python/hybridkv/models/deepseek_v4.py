# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4: a sliding window in every layer, and compressed history in most.

A CSA layer keeps one entry per 4 tokens, drawn from the window that it closes *and the one before*, and an
indexer key beside it; an HCA layer keeps one per 128. What a resume at t needs beside the entries:

===========  ======================================================  ============================
group        holds, per layer                                        needed at t
===========  ======================================================  ============================
``swa``      the last window's rows, every layer                     t - min(t, 127) to t
``overlap``  first halves of the last closed window, kv and score    always: the next entry draws
             side by side in float32, compressor and indexer         on them
``pending``  raw rows of the open CSA window, likewise               t mod 4 rows
``hca_tail`` raw rows of the open HCA window                         t mod 128 rows
===========  ======================================================  ============================

``pending`` and ``hca_tail`` are empty at multiples of the ratios, so that only tips keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hybridkv.coverage import SIZE_LIMIT, Checkpoint, Coverage, Prefix, Window
from hybridkv.errors import SpecError
from hybridkv.formats import REGISTRY, KvFormat
from hybridkv.group import MOST_LAYERS, CacheGroup
from hybridkv.kinds import StateKind
from hybridkv.models.attention import agreed, rows_group
from hybridkv.models.deepseek_mla import indexer_format, indexer_group
from hybridkv.models.reader import ELEMENT_BYTES, SLIDING, ConfigReader
from hybridkv.models.rotary import rotation

CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"

TYPE_OF_RATIO = {0: SLIDING, 4: CSA, 128: HCA}
"""What the entries of the legacy ``compress_ratios`` mean."""

RATES = {CSA: 4, HCA: 128}
"""What ``compress_ratios`` implies."""

ROWS, INDEXER = REGISTRY["fp8_ds_mla_v4"], REGISTRY["indexer_fp8"]
PUBLISHED_FP8 = (ROWS.format.head_dim, ROWS.format.rope_dims, INDEXER.format.head_dim)
"""Head, rotary and indexer widths of the published FP8 rows: 584 and 132 bytes."""

STATE = REGISTRY["rows_in_position_order"].declare("state_format", "bias_added")
STATE_BYTES = ELEMENT_BYTES[STATE.dtype]


def groups(config: ConfigReader, unit_tokens: int, dtype: str) -> list[CacheGroup]:
    """Return csa, hca, indexer, swa, overlap, pending and hca_tail, as far as the model has such layers."""
    types, rates = _schedule(config), _rates(config)
    layers = {t: [i for i, layer in enumerate(types) if layer == t] for t in (SLIDING, CSA, HCA)}
    width, index_width = config.positive("head_dim"), config.positive("index_head_dim")
    rows = _row_dtype(config, dtype, width, index_width)
    history = _history_format(config, rows, width)
    found: list[CacheGroup] = []
    if layers[CSA]:
        csa_format = replace(history, ratio=rates[CSA], overlap=True)
        found.append(_entries("csa", Prefix(), layers[CSA], csa_format, unit_tokens))
    if layers[HCA]:
        hca_format = replace(history, ratio=rates[HCA], overlap=False)
        found.append(_entries("hca", Prefix(), layers[HCA], hca_format, unit_tokens))
    if layers[CSA]:
        index_format = indexer_format(rows, index_width, rates[CSA], *_entry_rotation(config))
        found.append(indexer_group("csa", layers[CSA], index_format, unit_tokens))
    window = Window(config.positive("sliding_window"))
    window_format = replace(history, theta=rotation(config, "main")[0], yarn=_window_scaling(history))
    found.append(_entries("swa", window, list(range(len(types))), window_format, unit_tokens))
    if layers[CSA]:
        found.append(_overlap(layers[CSA], rates[CSA], width, index_width))
        found.append(_pending(layers[CSA], rates[CSA], width, index_width))
    if layers[HCA]:
        found.append(_hca_tail(layers[HCA], rates[HCA], width))
    require_overlap(found)
    return found


def require_overlap(groups: Iterable[CacheGroup]) -> None:
    """Refuse a compressed group whose entries draw on the window before, without the tail that keeps it.

    Parameters
    ----------
    groups : iterable of CacheGroup
        Groups whose formats declare ``overlap``.

    Raises
    ------
    SpecError
        No ``Checkpoint()`` tail of overlap rows covers the group's layers.
    """
    groups = list(groups)
    kept: set[int | str] = set()
    for group in groups:
        overlapping = group.format is not None and group.format.overlap
        if overlapping and group.kind is StateKind.TAIL and group.coverage == Checkpoint():
            kept.update(group.layers)
    for group in groups:
        if group.kind is StateKind.COMPRESSED and group.format and group.format.overlap:
            missing = [layer for layer in group.layers if layer not in kept]
            if missing:
                expected = f"a Checkpoint() tail with the overlap of group {group.name!r}"
                raise SpecError("groups", expected, f"none for layers {missing}")


def _schedule(config: ConfigReader) -> list[str]:
    count = config.positive("num_hidden_layers")
    explicit = config.names("layer_types", count, (SLIDING, CSA, HCA))
    ratios = config.get("compress_ratios")
    derived = None
    if ratios is not None:
        draft = config.get("num_nextn_predict_layers") or 0
        if isinstance(draft, bool) or not isinstance(draft, int) or not 0 <= draft <= MOST_LAYERS:
            raise config.refuse("num_nextn_predict_layers", f"an int, 0 to {MOST_LAYERS}")
        lengths = {count, count + draft}
        if not isinstance(ratios, (list, tuple)) or len(ratios) not in lengths:
            expected = f"{' or '.join(map(str, sorted(lengths)))} ratios, one per layer"
            raise config.refuse("compress_ratios", expected)
        for ratio in ratios:
            if type(ratio) is not int or ratio not in TYPE_OF_RATIO:
                raise config.refuse("compress_ratios", "ratios out of 0, 4, 128", ratio)
        derived = [TYPE_OF_RATIO[ratio] for ratio in ratios[:count]]  # the rest is the draft head's
    return agreed(config, "layer_types" if explicit is not None else "compress_ratios", explicit, derived)


def _rates(config: ConfigReader) -> dict[str, int]:
    """Return tokens per entry by type of layer, from whichever fields name them; they must agree."""
    found: dict[str, int] = {}
    rates = config.get("compress_rates")
    if rates is None:
        rates = {}
    if not isinstance(rates, Mapping):
        raise config.refuse("compress_rates", "a mapping of layer types to ratios")
    for layer_type, legacy in ((CSA, "compress_rate_csa"), (HCA, "compress_rate_hca")):
        listed: dict[str, object] = {"compress_rates": rates.get(layer_type), legacy: config.get(legacy)}
        if config.get("compress_ratios") is not None:
            listed["compress_ratios"] = RATES[layer_type]
        named = {field: rate for field, rate in listed.items() if rate is not None}
        for field, rate in named.items():
            if isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate < SIZE_LIMIT:
                raise config.refuse(field, f"an int >= 1, below 2**48, for {layer_type}", rate)
            if found.setdefault(layer_type, rate) != rate:
                raise config.refuse(field, f"one ratio for {layer_type}", named)
        if layer_type not in found:
            raise config.refuse("compress_rates", f"a ratio for {layer_type}")
    return found


def _rope_dims(config: ConfigReader, width: int) -> int:
    explicit = config.optional_positive("qk_rope_head_dim")
    if explicit is not None:
        if explicit > width:
            raise config.refuse("qk_rope_head_dim", f"at most head_dim, {width}")
        return explicit
    factor = config.number("partial_rotary_factor")
    if factor is None:
        raise config.refuse("qk_rope_head_dim", "an int >= 1, or a partial_rotary_factor")
    if factor > 1:
        raise config.refuse("partial_rotary_factor", "a number, 0 to 1")
    return int(width * factor)


def _row_dtype(config: ConfigReader, dtype: str, width: int, index_width: int) -> str:
    if dtype == "fp8" and (width, _rope_dims(config, width), index_width) == PUBLISHED_FP8:
        return "fp8"
    return config.row_dtype(dtype)


def _history_format(config: ConfigReader, dtype: str, width: int) -> KvFormat:
    """Return the format of entries.

    In FP8: unrotated channels in tiles, rotated ones in bfloat16, scales in a footer of the page.
    """
    rope = _rope_dims(config, width)
    theta, yarn = _entry_rotation(config)
    common: dict[str, object] = {
        "rope_dims": rope,
        "position_convention": "absolute_interleaved",
        "theta": theta,
        "yarn": yarn,
        "norm_eps": config.number("rms_norm_eps"),
        "ratio": 1,
    }
    if dtype != "fp8":
        size = width * ELEMENT_BYTES[dtype]
        return KvFormat("mla_rows", dtype, row_bytes=size, **common)  # type: ignore[arg-type]
    return replace(ROWS.declare("scale", "tile", "scale_placement", "row_bytes"), **common)  # type: ignore[arg-type]


def _entry_rotation(config: ConfigReader) -> tuple[float | None, dict[str, object] | None]:
    """Return base and scaling for layers with a compressor, whose factor on attention is always 1."""
    theta, yarn = rotation(config, "compress", leave_out=("attention_factor",))
    own = config.number("compress_rope_theta")
    return theta if own is None else own, yarn


def _window_scaling(history: KvFormat) -> dict[str, object]:
    """Window rows are rotated as their layer is: sliding layers by the plain base, others as entries."""
    return {**(history.yarn or {}), "compress_rope_theta": history.theta or 0.0}


def _entries(name: str, coverage: Coverage, layers: list[int], row_format: KvFormat, unit_tokens: int) -> CacheGroup:
    """Return a group of rows, its format completed by what the page's size decides."""
    group = rows_group(name, coverage, layers, row_format, unit_tokens)
    rows = group.rows_per_page or 1
    placed = replace(row_format, page_rows=rows)
    if row_format.scale_placement == "page_footer":
        placed = replace(placed, footer_offset=ROWS.paged(rows).footer_offset)
    return replace(group, format=placed)


def _state(
    name: str, coverage: Checkpoint, layers: list[int], rows: int, members: dict[str, int], *, overlap: bool
) -> CacheGroup:
    """Return a tail group of float32 rows; ``members`` gives the elements of a row by member."""
    row_bytes = sum(members.values()) * STATE_BYTES
    return CacheGroup(
        name,
        StateKind.TAIL,
        coverage,
        page_bytes=rows * row_bytes,
        row_bytes=row_bytes,
        rows_per_page=rows,
        parts={member: len(layers) * rows * n * STATE_BYTES for member, n in members.items()},
        format=replace(STATE, overlap=overlap, ring_rows=rows, row_bytes=row_bytes),
        layers=layers,
    )


def _overlap(layers: list[int], rate: int, width: int, index_width: int) -> CacheGroup:
    """First halves of the last closed window: kv and score, one width each."""
    members = {"csa": 2 * width, "indexer": 2 * index_width}
    return _state("overlap", Checkpoint(), layers, rate, members, overlap=True)


def _pending(layers: list[int], rate: int, width: int, index_width: int) -> CacheGroup:
    """Raw rows of the open CSA window: kv and score, both halves."""
    members = {"csa": 2 * 2 * width, "indexer": 2 * 2 * index_width}
    return _state("pending", Checkpoint(every=rate), layers, rate, members, overlap=False)


def _hca_tail(layers: list[int], rate: int, width: int) -> CacheGroup:
    """Raw rows of the open HCA window: kv and score."""
    return _state("hca_tail", Checkpoint(every=rate), layers, rate, {"hca": 2 * width}, overlap=False)
