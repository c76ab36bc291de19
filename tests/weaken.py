# SPDX-License-Identifier: Apache-2.0
"""Weaken every numbered memory order in turn and show which model-checked program notices.

Run after the Relacy programs are built (target ``relacy``)::

    python tests/weaken.py build/release            # check, exit 1 if a weakening goes unnoticed
    python tests/weaken.py build/release --write    # search from the start, and write docs/memory-orders.md

A check begins with the program that the document names, and does not search again what the document has a proof for.

A program takes the weakening from the environment (``HKV_WEAKEN="12 acquire"``), so one build serves
every site. Orders that no program can show to be needed are listed in `PROVED` with the place of the proof.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "memory-orders.md"
# Fast programs first: the search for a witness ends at the first failure.
PROGRAMS = ("disk_index", "index", "table", "overflow", "life", "lease", "word")
PROVED = {
    (17, "relaxed"): "`csrc/block/descriptor.h`, invariant 6",
    (29, "relaxed"): "`csrc/base/handouts.h`, invariant 1",
    (30, "relaxed"): "`csrc/base/handouts.h`, invariant 1",
    # Relacy lets a later relaxed store of the same thread carry a release on, which C++20 does not.
    (44, "relaxed"): "`csrc/tier/index_buckets.h`, invariant 2",
    (45, "relaxed"): "`csrc/tier/disk_index.h`, invariant 4",
    (46, "relaxed"): "`csrc/tier/disk_index.h`, invariant 4",
}
WEAKER = {
    "load": {"acquire": ("relaxed",), "seq_cst": ("acquire", "relaxed")},
    "store": {"release": ("relaxed",), "seq_cst": ("release", "relaxed")},
    "update": {
        "acquire": ("relaxed",),
        "release": ("relaxed",),
        "acq_rel": ("acquire", "release", "relaxed"),
        "seq_cst": ("acq_rel", "acquire", "release", "relaxed"),
    },
}

_SITE = re.compile(r"\bat\(\s*(\d+)\s*,\s*(\w+)\s*\)")
_COMMENT = re.compile(r"//\s*\((\d+)\)\s+\w+-(load|store|CAS|RMW)\s+(?:synchronizes|orders)-with")
_ROW = re.compile(r"\| (\d+) \| [^|]*\| [^|]*\| (\w+) \| (.*)")
_PROGRAM = re.compile(r"`tests/cpp/relacy/(\w+)\.cpp`")
_RESULT = re.compile(r"^(.{28}) (ok|FAILED)\s+(\d+) executions")


@dataclass(frozen=True)
class Site:
    """One ``at(n, order)`` and what kind of access it orders."""

    number: int
    order: str
    kind: str
    file: str


def sites() -> list[Site]:
    """Collect the numbered sites of the core with their kinds."""
    found = {}
    kinds = {}
    for path in sorted((ROOT / "csrc").rglob("*.[hc]*")):
        for line in path.read_text(encoding="utf-8").splitlines():
            comment = _COMMENT.search(line)
            if comment:
                kinds[int(comment.group(1))] = comment.group(2)
            for match in _SITE.finditer(line.split("//")[0]):
                found[int(match.group(1))] = (match.group(2), path.relative_to(ROOT).as_posix())
    return [
        Site(number, order, kinds[number] if kinds[number] in ("load", "store") else "update", file)
        for number, (order, file) in sorted(found.items())
    ]


def run(program: Path, weakening: str) -> tuple[str, int] | None:
    """Run one program. Returns the suite that failed and its executions, or None where all passed."""
    environment = {**os.environ, "HKV_WEAKEN": weakening, "HKV_RELACY_FIRST": "1"}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=900, check=False)
    for line in done.stdout.splitlines():
        match = _RESULT.match(line)
        if match and match.group(2) == "FAILED":
            return match.group(1).strip(), int(match.group(3))
    if done.returncode != 0:
        raise SystemExit(f"{program} with '{weakening}' ended with {done.returncode}: {done.stderr}")
    return None


def witness(directory: Path, weakening: str, first: str | None = None) -> tuple[str, str, int] | None:
    """Find the first program that fails under a weakening, `first` before all others."""
    for name in sorted(PROGRAMS, key=lambda name: name != first):
        failed = run(directory / f"relacy.{name}", weakening)
        if failed:
            return name, *failed
    return None


def known_rows() -> dict[tuple[int, str], str]:
    """Return what the document says of each weakening."""
    rows = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        match = _ROW.match(line)
        if match:
            rows[int(match.group(1)), match.group(2)] = match.group(3)
    return rows


def said_of(directory: Path, site: Site, weaker: str, known: str) -> str | None:
    """Weaken one order. Returns the end of its row, None where nothing notices and nothing proves it."""
    proved = PROVED.get((site.number, weaker))
    proof = f"no program; proof: {proved} | "
    if proved and known.startswith(proof.rstrip(" |")):
        return proof
    named = _PROGRAM.search(known)
    found = witness(directory, f"{site.number} {weaker}", named.group(1) if named else None)
    if found:
        return f"`tests/cpp/relacy/{found[0]}.cpp`: {found[1]} | {found[2]:,}"
    return proof if proved else None


def document(rows: list[str]) -> str:
    """Build the text of docs/memory-orders.md."""
    return "\n".join(
        [
            "# Memory orders: what shows that each is needed",
            "",
            "Written by `tests/weaken.py`; do not edit. Each numbered order is weakened, one at a time, and the",
            "programs of `tests/cpp/relacy` search all executions of two or three threads for one that then fails.",
            "The sites and what they pair with are described beside the code; `csrc/README.md` tells the form.",
            "Every relaxed operation carries no number: it is shown to suffice by the same programs passing.",
            "",
            "| site | where | order | weakened to | noticed by | after executions |",
            "|---:|---|---|---|---|---:|",
            *rows,
            "",
        ]
    )


def without_counts(text: str) -> list[str]:
    """Drop the last column, which moves with every small change of the code."""
    return [line.rsplit("|", 2)[0] if line.startswith("|") else line for line in text.splitlines()]


def main() -> int:
    """Weaken each site, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("programs", type=Path, help="folder of the built relacy.* programs")
    parser.add_argument("--write", action="store_true", help="write docs/memory-orders.md")
    arguments = parser.parse_args()
    started = time.monotonic()
    known = {} if arguments.write else known_rows()
    tried = [(site, weaker) for site in sites() for weaker in WEAKER[site.kind][site.order]]
    rows, unnoticed, count = [], [], len(tried)
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # each waits for programs of its own
        programs = [arguments.programs / f"relacy.{name}" for name in PROGRAMS]
        if any(threads.map(run, programs, repeat("0 relaxed"))):
            raise SystemExit("the programs fail without any weakening")
        ends = [known.get((site.number, weaker), "") for site, weaker in tried]
        said = threads.map(said_of, repeat(arguments.programs), *zip(*tried, strict=True), ends)
        for (site, weaker), end in zip(tried, said, strict=True):
            if end is None:
                unnoticed.append((site.number, weaker))
            row = f"| {site.number} | `{site.file}` | {site.order} | {weaker} | {end or 'NOTHING | '} |"
            print(row, flush=True)
            rows.append(row)
    print(f"{count} weakenings, {len(unnoticed)} unnoticed, {time.monotonic() - started:.0f} s")
    if arguments.write:
        DOCUMENT.write_text(document(rows), encoding="utf-8")
    elif without_counts(DOCUMENT.read_text(encoding="utf-8")) != without_counts(document(rows)):
        print(f"{DOCUMENT.relative_to(ROOT)} is out of date: run again with --write", file=sys.stderr)
        return 1
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
