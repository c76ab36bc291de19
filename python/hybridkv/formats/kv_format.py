# SPDX-License-Identifier: Apache-2.0
"""The declared format of pages: every field that was seen to change bytes, and what two formats have apart.

Equal size and equal dtype prove nothing: two engines may write 132-byte indexer rows of which one is rotated
by a Hadamard matrix and the other is not. A :class:`KvFormat` declares; two formats are compared by a fingerprint,
and the difference is told field by field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hybridkv.coverage import positive_int
from hybridkv.errors import ArgumentError, SpecError
from hybridkv.formats.canonical import canonical_bytes, framed_digest
from hybridkv.formats.field_values import normal
from hybridkv.formats.severity import CONVERTIBLE, COSMETIC, INCOMPATIBLE, Compatibility, FieldDiff
from hybridkv.texts import name_of

_TAG = "hybridkv.format"


def _declared(severity: str, source: str, default: Any = None, *, since: int = 1) -> Any:
    """Declare an optional keyword field: what a difference means, where it was seen, first schema of documents."""
    return field(default=default, kw_only=True, metadata={"severity": severity, "source": source, "since": since})


def _later(severity: str, source: str) -> Any:
    """Declare a field that came with schema 2 of documents."""
    return _declared(severity, source, since=2)


@dataclass(frozen=True)
class KvFormat:
    """The declared format of the pages of a cache group.

    A field that is None (or an empty string) is not declared: it does not enter the fingerprint, so that
    fields added later leave old fingerprints as they are. A declared and an undeclared field differ. Where each field
    was seen to vary is in the metadata of the dataclass, as is what a difference means; ``docs/formats.md`` lists both.

    Parameters
    ----------
    layout : str
        Name of the row or state layout, such as ``"fp8_ds_mla"``.
    dtype : str
        Element type of the main part, such as ``"float8_e4m3"`` or ``"bfloat16"``.
    scale : str, optional
        Encoding of scales: ``"float32"``, ``"ue8m0"`` (a byte), ``"ue8m0x4"`` (four of them in a word), ``"e4m3"``,
        ``"none"``.
    tile : int, optional
        Elements that share a scale; 0: all of a tensor.
    scale_placement : str, optional
        ``"inline"``, ``"page_footer"`` or ``"pool"``. Convertible.
    scale_floor : float, optional
        Smallest absolute maximum before a scale is derived.
    rope_dims : int, optional
        Rotated channels of a row.
    position_convention : str, optional
        Which position a row is rotated at, and how: pairs or halves.
    theta : float, optional
        Base of the rotary embedding.
    yarn : mapping of str to number or str, optional
        Scaling parameters of the rotary embedding (YaRN and its kin).
    hadamard : bool, optional
        Whether rows are rotated by a Hadamard matrix before they are quantised.
    norm_eps : float, optional
        Epsilon of the norm that the rows went through.
    rounding_point : str, optional
        Where values are rounded, such as ``"before_norm"`` or ``"after_norm"``.
    ratio : int, optional
        Tokens that one row stands for.
    overlap : bool, optional
        Whether a row also draws on the window before its own.
    state_format : str, optional
        Order of the rows of a state: ``"rows_mod_ring"``, ``"reference_order"``, ``"online_triple"``.
    bias_added : bool, optional
        Whether stored scores carry their position bias.
    ring_rows : int, optional
        Rows of the ring that a state is kept in. Convertible.
    spec_width : int, optional
        Draft tokens that the ring makes room for, 0 for none. Convertible.
    row_bytes : int, optional
        Bytes of one row of one layer.
    page_rows, page_stride, alignment, footer_offset : int, optional
        Rows of a page; bytes from page to page; alignment of the page base; offset of the scales in bytes.
        Convertible: they say where bytes lie, not what they mean.
    shard : str, optional
        Rule by which tensor, pipeline and context ranks share rows, such as ``"replicated"``, ``"heads"``. Convertible.
    roles : mapping of str to str, optional
        Which layer plays which role.
    family, model, weights : str, optional
        Model family, model id and weights revision.
    kernel_version : str, optional
        Version of the package whose kernels wrote the bytes, where bytes depend on it.
    gpu_family : str, optional
        GPU family, where bytes depend on it.
    scale_power_of_two : bool, optional
        Whether scales are rounded up to a power of two when they are derived.
    quantiser_input : str, optional
        What values are rounded to before the quantiser sees them: ``"bfloat16"``, ``"float32"`` for not at all.
    channel_order : str, optional
        Parts of a row in the order of their bytes, such as ``"nope|rope|scales"``. Convertible.
    head_dim : int, optional
        Channels of a row, or of a head.
    rope_dtype : str, optional
        Element type of the rotated channels, where it may be another.
    rope_rounding : str, optional
        What the rotation takes: ``"from_float32"``, or ``"from_bfloat16"``, rounded before.
    softmax_rounding : str, optional
        Type of the weights that a compressor pools by: ``"float32"``, or ``"model"``.
    bias_rounding : str, optional
        Type in which the position bias is added to a score: ``"float32"``, or ``"model"``.
    projection_dtype : str, optional
        Type in which a compressor projects: ``"float32"``, or ``"model"``.
    gate_dtype : str, optional
        Element type of stored scores, of the overlap too.
    half_order : str, optional
        Which half of a compressor's row feeds the next window: ``"first_feeds_next"`` or ``"second_feeds_next"``.
    row_order : str, optional
        Rows inside a page: ``"plain"``, one after another; ``"page8"``, by eights; ``"transposed"``. Convertible.
    row_stride : int, optional
        Bytes from row to row in a page: the row's own bytes there (packed) or more (padded). Convertible.
    kv_order : str, optional
        Keys and values: ``"row"`` (of a token together), ``"page"`` (keys of a page, then values), ``"pool"`` (keys of
        all pages, then values), ``"pools"`` (arrays of their own), ``"shared"`` (one row is both). Convertible.
    head_layout : str, optional
        ``"NHD"``: a token's heads together; ``"HND"``: a head's tokens together. Convertible.
    local_heads : int, optional
        Key-value heads in the page: those of the rank. Convertible.
    total_heads : int, optional
        Key-value heads of the model.
    pool_split : str, optional
        Parts of a row that lie in pools of their own, such as ``"nope|rope"``; ``"one"``. Convertible.
    conv_dtype : str, optional
        Element type of the inputs of a convolution that a state keeps.
    conv_order : str, optional
        ``"channels|taps"`` or ``"taps|channels"``. Convertible.
    conv_rows : int, optional
        Inputs that are kept.
    matrix_order : str, optional
        Dimensions of a state matrix, outermost first, such as ``"heads|key|value"``. Convertible.
    dcp_interleave : int, optional
        Tokens that a context rank keeps in turn. Convertible.
    producer_version : str, optional
        Version of the engine. Cosmetic: no part of the fingerprint.
    producer : str, optional
        Name of the engine. Cosmetic: no part of the fingerprint.
    schema : int, optional
        Version of what the fields mean; it changes every fingerprint, so that fields are added without it. Documents
        have a number of their own (:data:`~hybridkv.formats.DOCUMENT_SCHEMA`).

    Raises
    ------
    SpecError
        A field of a wrong type or out of range: ints are 0 or more and below 2**48, numbers are finite, strings
        are such that UTF-8 can encode them, names in mappings are strings.

    Notes
    -----
    Each value is kept in one form, which is what is hashed: numbers and bools of numpy as Python's, mappings as ones
    that nobody changes. So fingerprints are equal exactly where :meth:`diff` tells nothing but cosmetic fields.

    Examples
    --------
    >>> ours = KvFormat("fp8_ds_mla", "float8_e4m3", scale="ue8m0", tile=64, page_rows=64)
    >>> theirs = KvFormat("fp8_ds_mla", "float8_e4m3", scale="ue8m0", tile=64, page_rows=128, producer="x")
    >>> [(d.field, d.severity) for d in ours.diff(theirs)]
    [('page_rows', 'convertible'), ('producer', 'cosmetic')]
    >>> compatible(ours, theirs).name
    'CONVERTIBLE'
    >>> len(ours.fingerprint)
    16
    """

    layout: str = field(
        metadata={"severity": INCOMPATIBLE, "source": "FlashMLA, vLLM, SGLang kv_layout.py", "since": 1}
    )
    dtype: str = field(metadata={"severity": INCOMPATIBLE, "source": "every engine", "since": 1})
    scale: str | None = _declared(INCOMPATIBLE, "vLLM, SGLang: fp32 or four UE8M0 bytes in one 132-byte row")
    tile: int | None = _declared(
        INCOMPATIBLE, "FlashMLA tests/quant.py: 64; V3.2: 128; SGLang kv_layout.py: 64, 32, 16"
    )
    scale_placement: str | None = _declared(CONVERTIBLE, "FlashMLA tests/quant.py: footer of the page; V3.2: inline")
    scale_floor: float | None = _declared(
        INCOMPATIBLE, "DeepSeek inference/kernel.py: 1e-4; TensorRT-LLM footer_scale_kv.py: 1e-8"
    )
    rope_dims: int | None = _declared(INCOMPATIBLE, "transformers configuration_deepseek_v4.py")
    position_convention: str | None = _declared(
        INCOMPATIBLE, "transformers modular_deepseek_v4.py: interleaved pairs; others: halves"
    )
    theta: float | None = _declared(INCOMPATIBLE, "transformers configuration_deepseek_v4.py: 10000 and 160000")
    yarn: Mapping[str, object] | None = _declared(
        INCOMPATIBLE, "transformers configuration_deepseek_v4.py: factor 16, no mscale"
    )
    hadamard: bool | None = _declared(INCOMPATIBLE, "SGLang, ATOM: rotated; vLLM FP8 indexer: not")
    norm_eps: float | None = _declared(INCOMPATIBLE, "DeepSeek-V4: 1e-6; V4.1: 1e-20")
    rounding_point: str | None = _declared(
        INCOMPATIBLE, "DeepSeek inference/model.py: bfloat16 before the norm; vLLM: after it"
    )
    ratio: int | None = _declared(INCOMPATIBLE, "transformers configuration_deepseek_v4.py: 4, 128; V4.1: 1, 2")
    overlap: bool | None = _declared(INCOMPATIBLE, "DeepSeek inference/model.py, Compressor")
    state_format: str | None = _declared(
        INCOMPATIBLE,
        "vLLM, SGLang: row p mod R; DeepSeek inference/model.py: previous, then current; SGLang ONLINE_C128",
    )
    bias_added: bool | None = _declared(
        INCOMPATIBLE, "transformers modular_deepseek_v4.py: tails without, overlap with; others: with"
    )
    ring_rows: int | None = _declared(
        CONVERTIBLE, "SGLang deepseek_v4_compress_state.py: 8 and 128, doubled with drafts"
    )
    spec_width: int | None = _declared(CONVERTIBLE, "SGLang deepseek_v4_compress_state.py; tokenspeed recipes/spec.py")
    row_bytes: int | None = _declared(INCOMPATIBLE, "FlashMLA tests/quant.py: 584; V3.2: 656")
    page_rows: int | None = _declared(CONVERTIBLE, "vLLM sparse_mla.py, indexer.py")
    page_stride: int | None = _declared(CONVERTIBLE, "vLLM sparse_swa.py: multiples of 576; SGLang kv_layout.py: 512")
    alignment: int | None = _declared(CONVERTIBLE, "FlashMLA csrc/api/sparse_decode.h")
    footer_offset: int | None = _declared(CONVERTIBLE, "FlashMLA tests/quant.py")
    shard: str | None = _declared(CONVERTIBLE, "vLLM kv_cache_interface.py; tensor, pipeline and context ranks")
    roles: Mapping[str, object] | None = _declared(
        INCOMPATIBLE, "transformers configuration_deepseek_v4.py, layer_types"
    )
    family: str = _declared(INCOMPATIBLE, "model_type of config.json", "")
    model: str = _declared(INCOMPATIBLE, "public: two checkpoints of one family", "")
    weights: str = _declared(INCOMPATIBLE, "public: revisions of one checkpoint", "")
    kernel_version: str = _declared(INCOMPATIBLE, "transformers 5.8 and 5.24: other bytes from equal weights", "")
    gpu_family: str = _declared(INCOMPATIBLE, "vLLM: scale encoding by GPU family", "")
    scale_power_of_two: bool | None = _later(INCOMPATIBLE, "DeepSeek inference/kernel.py: 2**ceil(log2); V3.2: exact")
    quantiser_input: str | None = _later(INCOMPATIBLE, "vLLM fused_compress_quant_cache.py: bfloat16")
    channel_order: str | None = _later(CONVERTIBLE, "FlashMLA tests/quant.py: nope|rope|scales; V3.2: nope|scales|rope")
    head_dim: int | None = _later(INCOMPATIBLE, "transformers configuration_deepseek_v4.py: 512, 128")
    rope_dtype: str | None = _later(INCOMPATIBLE, "FlashMLA tests/quant.py: bfloat16; V4.1: as the rest")
    rope_rounding: str | None = _later(INCOMPATIBLE, "DeepSeek inference/model.py, vLLM fused_compress_quant_cache.py")
    softmax_rounding: str | None = _later(
        INCOMPATIBLE, "transformers modular_deepseek_v4.py: weights in the model's dtype"
    )
    bias_rounding: str | None = _later(INCOMPATIBLE, "transformers modular_deepseek_v4.py, vLLM save_partial_states.py")
    projection_dtype: str | None = _later(
        INCOMPATIBLE, "DeepSeek inference/model.py: float32; transformers: the model's"
    )
    gate_dtype: str | None = _later(INCOMPATIBLE, "transformers before 5.24: bfloat16, from then float32")
    half_order: str | None = _later(INCOMPATIBLE, "DeepSeek inference/model.py; the report names them the other way")
    row_order: str | None = _later(CONVERTIBLE, "SGLang kv_layout.py: plain, interleaved; paged indexer kernels: by 8")
    row_stride: int | None = _later(CONVERTIBLE, "SGLang kv_canary; FlashMLA csrc/api/sparse_decode.h")
    kv_order: str | None = _later(CONVERTIBLE, "vLLM flash_attn.py, FlashInfer, SGLang memory_pool.py")
    head_layout: str | None = _later(CONVERTIBLE, "FlashInfer: NHD, HND")
    local_heads: int | None = _later(CONVERTIBLE, "vLLM kv_cache_interface.py: heads of one rank")
    total_heads: int | None = _later(INCOMPATIBLE, "config.json: heads of the model, replicated or not")
    pool_split: str | None = _later(CONVERTIBLE, "SGLang unified_kv (ROCm): nope and rope in pools of their own")
    conv_dtype: str | None = _later(INCOMPATIBLE, "transformers: LinearAttentionLayer.conv_states")
    conv_order: str | None = _later(CONVERTIBLE, "transformers: channels|taps; vLLM: either, by option")
    conv_rows: int | None = _later(INCOMPATIBLE, "transformers: kernel inputs kept; vLLM: one less")
    matrix_order: str | None = _later(CONVERTIBLE, "transformers: LinearAttentionLayer.recurrent_states")
    dcp_interleave: int | None = _later(CONVERTIBLE, "vLLM: interleave size of context ranks")
    producer_version: str | None = _later(COSMETIC, "version of the engine")
    producer: str = _declared(COSMETIC, "name of the engine", "")
    schema: int = _declared(INCOMPATIBLE, "this library", 1)

    def __post_init__(self) -> None:
        for name in ("layout", "dtype"):
            name_of(f"format.{name}", getattr(self, name), SpecError)
        positive_int("format.schema", self.schema)
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None or "None" not in str(f.type):
                object.__setattr__(self, f.name, normal(f.name, str(f.type), value))

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def fingerprint(self) -> bytes:
        """16 bytes, the same in every process: equal exactly where no field but cosmetic ones differs."""
        return framed_digest(_TAG, self._declared_items())

    @property
    def canonical(self) -> bytes:
        """The bytes that the fingerprint is the digest of."""
        return canonical_bytes(_TAG, self._declared_items())

    def declared(self) -> dict[str, object]:
        """Return every field that is declared, cosmetic ones included, in order of declaration."""
        pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in pairs if value is not None and value != ""}

    @property
    def namespace(self) -> str:
        """Short name for stores that know only strings: layout, dtype and 64 bits of the fingerprint.

        Made of letters, digits, ``_``, ``.`` and ``-``, so that it is a file name and a tag alike.
        """
        readable = re.sub(r"[^A-Za-z0-9_.]+", "_", f"{self.layout}.{self.dtype}")
        return f"{readable}-{self.fingerprint.hex()[:16]}"

    def listed(self) -> dict[str, object]:
        """Return every field of schema 1, declared or not, and of later fields those that are declared.

        What was digested over all fields when there were no others stays what it was.
        """
        pairs = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.name: value for f, value in pairs if f.metadata["since"] == 1 or value is not None}

    def diff(self, other: KvFormat) -> list[FieldDiff]:
        """Tell every field in which another format differs, in order of declaration.

        Parameters
        ----------
        other : KvFormat
            The other side.

        Returns
        -------
        list of FieldDiff
            Empty where the formats are equal.

        Raises
        ------
        ArgumentError
            ``other`` is no KvFormat.
        """
        if not isinstance(other, KvFormat):
            raise ArgumentError("other", "a KvFormat", other)
        pairs = ((f, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return [FieldDiff(f.name, a, b, f.metadata["severity"]) for f, a, b in pairs if a != b]

    def _declared_items(self) -> Iterable[tuple[str, object]]:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata["severity"] != COSMETIC and value is not None and value != "":
                yield f.name, value


def compatible(reader: KvFormat, writer: KvFormat) -> Compatibility:
    """Tell what a reader can do with the bytes of a writer.

    Parameters
    ----------
    reader, writer : KvFormat
        The format that is needed, and the one that the bytes were written in.

    Returns
    -------
    Compatibility
        EXACT: no field but cosmetic ones differs. CONVERTIBLE: only where bytes lie differs.
        INCOMPATIBLE: all else.

    Raises
    ------
    ArgumentError
        An argument that is no KvFormat.

    Examples
    --------
    >>> compatible(KvFormat("a", "bfloat16"), KvFormat("a", "float16")).name
    'INCOMPATIBLE'
    """
    if not isinstance(reader, KvFormat):
        raise ArgumentError("reader", "a KvFormat", reader)
    if not isinstance(writer, KvFormat):
        raise ArgumentError("writer", "a KvFormat", writer)
    severities = {d.severity for d in reader.diff(writer)}
    if INCOMPATIBLE in severities:
        return Compatibility.INCOMPATIBLE
    return Compatibility.CONVERTIBLE if CONVERTIBLE in severities else Compatibility.EXACT
