# SPDX-License-Identifier: Apache-2.0
"""The kernels in numpy and float64: what every faster one, on a CPU or a GPU, is compared with.

Slow and plain on purpose. Moving and summing bytes (:func:`gather`, :func:`scatter`, :func:`fingerprint`,
:func:`convert`) is exact everywhere; compression (:func:`compress_tail`) is exact here, and elsewhere within
:func:`~hybridkv.reference.bounds.float32_bound` before it quantises. ``docs/kernels-reference.md`` tells the whole.
"""

from hybridkv.page_rows import PageRows
from hybridkv.reference import published
from hybridkv.reference.bounds import float32_bound
from hybridkv.reference.compressor import Compressor
from hybridkv.reference.conversion import convert
from hybridkv.reference.conversion_plan import ConversionPlan, ConversionStep, Obstacle, plan_conversion
from hybridkv.reference.fingerprint_sums import fingerprint_of
from hybridkv.reference.hadamard import rotate_hadamard
from hybridkv.reference.indexer import choose_entries, index_scores
from hybridkv.reference.pages import fingerprint, gather, scatter
from hybridkv.reference.published import PUBLISHED
from hybridkv.reference.quantise import ScaleRule
from hybridkv.reference.ring import Ring
from hybridkv.reference.rotary import Rope, Yarn
from hybridkv.reference.row_format import Part, RowFormat
from hybridkv.reference.rows import decode_rows, encode_rows, load_rows, store_rows
from hybridkv.reference.small_floats import BFLOAT16, E2M1, E4M3, SmallFloat
from hybridkv.reference.tails import compress_tail

__all__ = [
    "BFLOAT16",
    "E2M1",
    "E4M3",
    "PUBLISHED",
    "Compressor",
    "ConversionPlan",
    "ConversionStep",
    "Obstacle",
    "PageRows",
    "Part",
    "Ring",
    "Rope",
    "RowFormat",
    "ScaleRule",
    "SmallFloat",
    "Yarn",
    "choose_entries",
    "compress_tail",
    "convert",
    "decode_rows",
    "encode_rows",
    "fingerprint",
    "fingerprint_of",
    "float32_bound",
    "gather",
    "index_scores",
    "load_rows",
    "plan_conversion",
    "published",
    "rotate_hadamard",
    "scatter",
    "store_rows",
]
