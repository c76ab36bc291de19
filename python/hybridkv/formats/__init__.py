# SPDX-License-Identifier: Apache-2.0
"""Formats: what the bytes of a page mean to the kernels that read them (the kernel ABI).

In reading order: ``kv_format`` (the fields, fingerprint, difference), ``canonical`` (their bytes), ``registry`` (what
engines are known to write), ``documents`` (a format as JSON, read across versions), ``conversions`` (what kernels can
rewrite), ``ranks``, ``manifest`` and ``negotiation`` (what two sides declare, and whether they agree).
"""

from __future__ import annotations

from hybridkv.formats.canonical import canonical_bytes, framed_digest
from hybridkv.formats.documents import DOCUMENT_SCHEMA, from_document, to_document
from hybridkv.formats.format_entry import FormatEntry
from hybridkv.formats.kv_format import KvFormat, compatible
from hybridkv.formats.manifest import GroupManifest, Manifest
from hybridkv.formats.negotiation import Agreement, Difference, Refusal, negotiate
from hybridkv.formats.ranks import RankGeometry
from hybridkv.formats.registry import REGISTRY, Registry
from hybridkv.formats.severity import CONVERTIBLE, COSMETIC, INCOMPATIBLE, Compatibility, FieldDiff

from hybridkv.formats.conversions import Relation, relation, row_format_of  # isort: skip  (builds on the above)

__all__ = [
    "CONVERTIBLE",
    "COSMETIC",
    "DOCUMENT_SCHEMA",
    "INCOMPATIBLE",
    "REGISTRY",
    "Agreement",
    "Compatibility",
    "Difference",
    "FieldDiff",
    "FormatEntry",
    "GroupManifest",
    "KvFormat",
    "Manifest",
    "RankGeometry",
    "Refusal",
    "Registry",
    "Relation",
    "canonical_bytes",
    "compatible",
    "framed_digest",
    "from_document",
    "negotiate",
    "relation",
    "row_format_of",
    "to_document",
]
