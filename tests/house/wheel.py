# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do with numpy alone; run by CI with the Python of a clean environment."""

from __future__ import annotations

import sys
from importlib import metadata

OPTIONAL = ("torch", "transformers", "vllm", "prometheus_client", "matplotlib", "rich", "pytest")


def main() -> None:
    """Import, match once, and look at what came in with it. Given HYBRIDKV_CUDA as the build had it."""
    import hybridkv as hk
    from hybridkv import _core

    group = hk.CacheGroup("kv", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=256)
    window = hk.CacheGroup("window", hk.StateKind.WINDOW, hk.Window(32), page_bytes=256)
    spec = hk.CacheSpec(16, [group, window])
    cache = hk.HybridCache(spec, blocks=64)
    keys = hk.block_keys(list(range(128)), 16)
    assert cache.match(keys).outcome is hk.Outcome.MISS
    cache.insert(keys)
    verdict = cache.match(keys)
    assert verdict.outcome is hk.Outcome.REUSABLE
    assert verdict.usable_tokens == 112, verdict.usable_tokens
    assert verdict.lease is not None
    verdict.lease.release()
    cache.evict(keys, {"window": True})
    assert cache.match(keys).outcome is hk.Outcome.FALSE_HIT

    assert "HybridkvLeak" in hk.metrics.alert_rules(), "the rules are data of the package"

    image_bytes = _core.cuda_facts()["image_bytes"]
    assert sys.argv[1] == "AUTO" or image_bytes == 0, f"built with {sys.argv[1]}, {image_bytes} bytes of kernels"

    imported = [name for name in OPTIONAL if name in sys.modules]
    assert not imported, f"import hybridkv brought {imported}"
    installed = ", ".join(sorted(d.metadata["Name"] for d in metadata.distributions()))
    print(f"Python {sys.version.split()[0]} with {installed}: a match works, no extra imported")
    print(f"{image_bytes} bytes of CUDA kernels (HYBRIDKV_CUDA={sys.argv[1]})")


if __name__ == "__main__":
    main()
