# SPDX-License-Identifier: Apache-2.0
"""Which fuzz parsers read with which file (tests/fuzz/parsers.py), and which files read nothing of others."""

from __future__ import annotations

from collections.abc import Mapping

_FILES = ("settings", "safetensors", "index")
_STORES = ("store",)
_RECORDS = ("envelope", "record", "store")

READ_BY: Mapping[str, tuple[str, ...]] = {
    "python/hybridkv/adapters/torch_ops/arguments.py": ("row-format",),
    "python/hybridkv/adapters/transformers/image_bytes.py": ("image",),
    "python/hybridkv/adapters/transformers/weights.py": ("checkpoint",),
    "python/hybridkv/checkpoint_files.py": _FILES,
    "python/hybridkv/doctor/documents.py": ("doctor-compare", "doctor-cache"),
    "python/hybridkv/doctor/manifests.py": ("doctor-compare",),
    "python/hybridkv/formats/manifest.py": ("manifest", "manifest-file"),
    "python/hybridkv/formats/manifest_file.py": ("manifest-file",),
    "python/hybridkv/keys.py": ("array-interface", "media"),
    "python/hybridkv/pools.py": ("device-array",),
    "python/hybridkv/probe/endpoint.py": ("service-answer",),
    "python/hybridkv/regular_file.py": ("config-file", "manifest-file", "checkpoint", *_FILES),
    "python/hybridkv/replay/trace.py": ("trace",),
    "python/hybridkv/rollout/state.py": ("rollout",),
    "python/hybridkv/spec.py": ("config-file", "config"),
    "python/hybridkv/tiers/adapter.py": ("envelope", "record"),
    "csrc/tier/record.cpp": _RECORDS,
    "csrc/tier/record.h": _RECORDS,
    "csrc/tier/region.cpp": _STORES,
    "csrc/tier/region.h": _STORES,
    "csrc/tier/region_check.cpp": _STORES,
    "csrc/tier/region_check.h": _STORES,
    "csrc/tier/store_walk.cpp": _STORES,
    "csrc/tier/tier.cpp": _RECORDS,
}
"""Files that read what others wrote, and the parsers of the fuzz runs that go through each."""

OF_OURS: Mapping[str, str] = {
    "python/hybridkv/explain/command.py": "arguments and ids of who runs it; tests/python/test_explain_command.py "
    "has those that are none",
    "python/hybridkv/explain/stored.py": "the name of a listing, from the eight bytes of a key that was made here",
    "python/hybridkv/adapters/transformers/reuse.py": "asks a tier for records; the core reads them",
    "python/hybridkv/cli.py": "opens the null device",
    "python/hybridkv/demo/conversations.py": "text of its own",
    "python/hybridkv/demo/disk.py": "what a child that it started prints",
    "python/hybridkv/demo/disk_damage.py": "a store that the demonstration made, to damage it",
    "python/hybridkv/dlpack.py": "a capsule lends memory of the process",
    "python/hybridkv/graph/buffers.py": "addresses of arrays that numpy made",
    "python/hybridkv/graph/standin.py": "addresses of arrays that numpy made",
    "python/hybridkv/metrics/alerts.py": "a text of the package, which it passes on",
    "python/hybridkv/reference/conversion.py": "rows in memory; every byte is a value",
    "python/hybridkv/reference/fingerprint_sums.py": "pages in memory; every byte is a value",
    "python/hybridkv/reference/page_rows.py": "addresses of arrays that numpy made",
    "python/hybridkv/reference/pages.py": "rows in memory; every byte is a value",
    "python/hybridkv/reference/rows.py": "rows in memory; every byte is a value",
    "python/hybridkv/reference/tails.py": "addresses of arrays that numpy made",
    "python/hybridkv/store_report.py": "digests that it wrote itself, and one that the command line names",
    "python/hybridkv/tiers/writers_file.py": "a directory; the file in it is read by manifest_file.py",
    "python/hybridkv/tiers/tier.py": "memory that the caller lends",
    "csrc/bindings/keys.cpp": "16 bytes of a key, whose number is compared",
    "csrc/tier/directory.cpp": "what the kernel says of files and locks",
    "csrc/tier/little_endian.h": "takes numbers where its callers have compared lengths",
}
"""Files that look as if they read, and why nothing there is of others."""
