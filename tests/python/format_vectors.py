# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of formats, and the tables of docs/formats.md: made anew, compared, or written.

::

    python tests/python/format_vectors.py --write

Without a package installed, by any Python >= 3.11: what makes a fingerprint is Python alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "formats" / "vectors.json"
DOCUMENT = ROOT / "docs" / "formats.md"


def vectors() -> dict[str, dict[str, str]]:
    """Canonical bytes and fingerprint of every entry, in hex."""
    from hybridkv.formats.registry import REGISTRY

    return {
        name: {"canonical": entry.format.canonical.hex(), "fingerprint": entry.format.fingerprint.hex()}
        for name, entry in REGISTRY.items()
    }


def bare(package: str) -> None:
    """Let the Python files of a package be imported without what its __init__ imports."""
    for name, folder in (("hybridkv", package), ("hybridkv.formats", f"{package}/formats")):
        module = ModuleType(name)
        module.__path__ = [folder]
        sys.modules[name] = module


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        from hybridkv.formats.tables import written_into

        GOLDEN.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="ascii")
        DOCUMENT.write_text(written_into(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        bare(sys.argv[1])
        print(json.dumps(vectors()))
