# SPDX-License-Identifier: Apache-2.0
"""The sdist holds sources and nothing else: its list of names is compared with an allow-list.

``python tests/house/sdist.py FILE.tar.gz`` checks one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

ALLOWED = re.compile(
    r"""(
        PKG-INFO | LICENSE | NOTICE | (README|CHANGELOG)\.md | pyproject\.toml | Makefile | \.clang-format
      | CMakeLists\.txt | CMakePresets\.json
      | cmake/[\w\-]+\.cmake
      | csrc/([\w\-]+/)*[\w\-]+\.(h|cpp|cu|cuh|md)
      | python/([\w\-]+/)*([\w\-]+\.pyi? | py\.typed | alerts\.yaml)
      | tests/([\w\-]+/)*[\w\-]+\.(h|cpp|py|md|txt)
      | tests/golden/[\w\-]+\.hex
      | tests/data/([\w.\-]+/)*[\w.\-]+\.(csv|json|jsonl|md|yaml)
      | bench/([\w\-]+/)*[\w\-]+\.(h|hpp|cpp|py|md)
      | docs/([\w\-]+/)*[\w\-]+(\.zh-CN)?\.(md|png)
    )""",
    re.VERBOSE,
)
NEEDED = {
    "PKG-INFO", "LICENSE", "NOTICE", "README.md", "pyproject.toml", "CMakeLists.txt",
    "csrc/bindings/module.cpp", "csrc/base/atomic.h", "csrc/kernels/device_image.cu", "python/hybridkv/__init__.py",
    "python/hybridkv/py.typed", "python/hybridkv/_core.pyi", "python/hybridkv/metrics/alerts.yaml",
    "tests/test_house.py", "tests/cpp/testing.h",
}  # fmt: skip
LARGEST_BYTES = 2 * 1024 * 1024


def listing(archive: Path) -> dict[str, int]:
    """Return name -> bytes of the files of an sdist, without its top folder."""
    with tarfile.open(archive) as tar:
        return {m.name.partition("/")[2]: m.size for m in tar.getmembers() if not m.isdir()}


def disallowed(names: dict[str, int]) -> list[str]:
    """Find names that have no place in an sdist, names that it lacks, and files that are too large."""
    found = [f"{name}: not on the allow-list of the sdist" for name in sorted(names) if not ALLOWED.fullmatch(name)]
    found += [f"{name}: missing in the sdist" for name in sorted(NEEDED - names.keys())]
    found += [f"{name}: {size} bytes in the sdist" for name, size in sorted(names.items()) if size > LARGEST_BYTES]
    return found


def built(root: Path, folder: Path) -> dict[str, int]:
    """Build the sdist of the tree into `folder` and return its listing."""
    code = f"import scikit_build_core.build as b; print(b.build_sdist({str(folder)!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the sdist does not build:\n{run.stderr}")
    return listing(folder / run.stdout.split()[-1])


if __name__ == "__main__":
    problems = disallowed(listing(Path(sys.argv[1])))
    print("\n".join(problems) or "the sdist holds what it may hold")
    sys.exit(bool(problems))
