# SPDX-License-Identifier: Apache-2.0
"""Stub = module: ``python/hybridkv/_core.pyi`` is what pybind11-stubgen says of the built module.

``python tests/house/stub.py`` prints the difference, ``--write`` rewrites the stub.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = "python/hybridkv/_core.pyi"
HEAD = "# SPDX-License-Identifier: Apache-2.0\n# Written by tests/house/stub.py from the built module; do not edit.\n"


def generated() -> str:
    """Return the stub of the installed ``hybridkv._core``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "--exit-code", "-o", folder, "hybridkv._core"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"pybind11-stubgen failed:\n{run.stdout}{run.stderr}")
        text = Path(folder, "hybridkv", "_core.pyi").read_text(encoding="utf-8")
    return HEAD + _normal(text)


def _normal(text: str) -> str:
    """Return the stub without what differs between two builds of the same sources."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def differences(root: Path, text: str) -> list[str]:
    """Find lines in which the committed stub is not `text`."""
    path = root / STUB
    committed = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(committed.splitlines(), text.splitlines(), STUB, "the module", n=0, lineterm="")
    return [f"{STUB}: {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]


def main(arguments: list[str]) -> int:
    """Print or repair the difference; return 1 where there is one left."""
    root = Path(__file__).resolve().parents[2]
    text = generated()
    if arguments == ["--write"]:
        (root / STUB).write_text(text, encoding="utf-8")
        return 0
    found = differences(root, text)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
