# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the device kernels: registers, shared memory, spills, and the width of loads and stores.

::

    python bench/device_image.py           # print the table
    python bench/device_image.py --write   # and put it into docs/kernels.md

Needs nvcc and no GPU. Loads and stores are counted in the PTX, where a kernel has each width in its own branch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- device image: begin -->\n", "<!-- device image: end -->\n"
TARGETS = ("sm_80", "sm_90a", "sm_100")


def options() -> list[str]:
    """Return the options of the build, from where it has them."""
    text = (ROOT / "cmake" / "DeviceImage.cmake").read_text(encoding="utf-8")
    found = re.search(r'COMMAND "\$\{nvcc\}" ([^\n]*)\n', text)
    assert found is not None, "the command of cmake/DeviceImage.cmake moved"
    return found.group(1).split()


def nvcc(*arguments: str) -> str:
    """Run nvcc on the kernels and return what it told."""
    source = str(ROOT / "csrc" / "kernels" / "device_image.cu")
    command = ["nvcc", *options(), "-I", str(ROOT / "csrc"), *arguments, source]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return run.stdout + run.stderr


def resources(target: str, folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return registers, shared bytes and spilled bytes of each kernel, with those of the functions that it calls."""
    gencode = f"arch={target.replace('sm', 'compute')},code={target}"
    told = nvcc("-gencode", gencode, "-cubin", "-Xptxas", "-v", "-o", str(folder / f"{target}.cubin"))
    found = {}
    for part in told.split("Compiling entry function '")[1:]:
        name = part.partition("'")[0]
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = (registers, int(shared.group(1)) if shared else 0, sum(int(n) for pair in spills for n in pair))
    return found


def _bodies(text: str) -> dict[str, tuple[bool, str]]:
    """Return the bodies of kernels (True) and functions by name; a declaration has none."""
    found = {}
    heads = re.compile(r"^\.(?:visible |weak )?\.?(entry|func) +(?:\([^)]*\) *)?([\w$]+)\(", re.MULTILINE)
    for head in heads.finditer(text):
        end = text.index("\n}\n", head.end())
        if "{" in text[head.end() : end]:
            found[head.group(2)] = (head.group(1) == "entry", text[head.end() : end])
    return found


def widths(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the widths of global loads and stores of each kernel, with how many instructions have them."""
    file = folder / "kernels.ptx"
    nvcc("-gencode", "arch=compute_100,code=compute_100", "-ptx", "-o", str(file))
    bodies = _bodies(file.read_text(encoding="utf-8"))
    called = {name: body for name, (is_kernel, body) in bodies.items() if not is_kernel}
    found = {}
    for name, (is_kernel, body) in bodies.items():
        if not is_kernel:
            continue
        whole = body + "".join(other for function, other in called.items() if function in body)
        counted = [
            Counter(
                int(lanes or 1) * int(bits) // 8
                for lanes, bits in re.findall(rf"\b{op}\.global\.cg\.(?:v(\d)\.)?[a-z](\d+)", whole)
            )
            for op in ("ld", "st")
        ]
        shown = [", ".join(f"{width} B x{c[width]}" for width in sorted(c, reverse=True)) for c in counted]
        found[name] = (shown[0], shown[1])
    return found


def table() -> str:
    """Return the table in Markdown."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_target = {target: resources(target, folder) for target in TARGETS}
        ways = widths(folder)
    lines = [
        f"| kernel | registers ({', '.join(TARGETS)}) | shared bytes | spilled bytes | loads in PTX | stores in PTX |",
        "|---|---|---|---|---|---|",
    ]
    for kernel in sorted(ways):
        rows = [by_target[target][kernel] for target in TARGETS]
        registers, shared, spilled = (", ".join(str(row[k]) for row in rows) for k in range(3))
        lines.append(f"| `{kernel}` | {registers} | {shared} | {spilled} | {ways[kernel][0]} | {ways[kernel][1]} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table; with --write put it between its marks."""
    parser = argparse.ArgumentParser(description="Registers, shared memory, spills and load widths of device kernels.")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    made = table()
    print(made, end="")
    if arguments.write:
        before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}{made}{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
