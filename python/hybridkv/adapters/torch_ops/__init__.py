# SPDX-License-Identifier: Apache-2.0
"""The kernels as ops of torch: importing this module registers ``torch.ops.hybridkv.*``.

``import hybridkv`` does so by itself where torch was imported before. ``docs/kernels.md`` section 10 has the schemas.
"""

from __future__ import annotations

from hybridkv.extras import TORCH, importing

with importing(__name__, TORCH):
    from hybridkv.adapters.torch_ops.arguments import schema_arguments
    from hybridkv.adapters.torch_ops.registered import NAMES

__all__ = ["NAMES", "schema_arguments"]
