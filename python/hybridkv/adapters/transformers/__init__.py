# SPDX-License-Identifier: Apache-2.0
"""hybridkv behind transformers: prefix reuse for real models, bit for bit."""

from __future__ import annotations

from hybridkv.extras import TRANSFORMERS, importing

with importing(__name__, TRANSFORMERS):
    from hybridkv.adapters.transformers.checked import Checked, CheckedReuse, benign_controls
    from hybridkv.adapters.transformers.image import CacheImage
    from hybridkv.adapters.transformers.output import ReuseOutput
    from hybridkv.adapters.transformers.reuse import PrefixReuse
    from hybridkv.adapters.transformers.rows import RowReuse
    from hybridkv.adapters.transformers.weights import checkpoint_digest, weights_digest

__all__ = [
    "CacheImage",
    "Checked",
    "CheckedReuse",
    "PrefixReuse",
    "ReuseOutput",
    "RowReuse",
    "benign_controls",
    "checkpoint_digest",
    "weights_digest",
]
