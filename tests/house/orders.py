# SPDX-License-Identifier: Apache-2.0
"""Memory orders: who may spell one, and the graph of the numbered comments beside them.

Code spells ``at(12, release)``; on that line or up to four lines above it stands the comment
``// (12) release-store synchronizes-with (15, 16)``, or ``orders-with`` between seq_cst sites that need
nothing but the total order. csrc/README.md describes the format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from house.tree import code_of, core_files, shown

SEAM = "csrc/base/atomic.h"  # names std::atomic and std::memory_order, nobody else does
CHECKER_SEAM = "csrc/base/relacy_atomic.h"  # the same type over the model checker
MAY_ORDER = ("base", "block", "tier")
COMMENT_REACH = 4  # lines

_SITE = re.compile(r"\bat\(\s*(\d+)\s*,\s*(?:hkv::)?(\w+)\s*\)")
_COMMENT = re.compile(r"\((\d+)\)\s.*?(synchronizes-with|orders-with)\s\(([\d, ]+)\)")
_BARE = re.compile(r"[(,]\s*(?:hkv::)?(acquire|release|acq_rel|seq_cst)\s*[,)]")
_STANDARD = re.compile(r"\bstd::atomic\w*\b|\bstd::memory_order\w*|\bmemory_order_\w+|\b__(?:atomic|sync)_\w+")
_ACQUIRES = {"acquire", "acq_rel", "seq_cst"}
_RELEASES = {"release", "acq_rel", "seq_cst"}


@dataclass(frozen=True)
class Site:
    """One ``at(n, order)``."""

    where: str
    file: str
    line: int
    order: str


@dataclass(frozen=True)
class Edge:
    """One comment: `verb` joins its number with `others`."""

    where: str
    file: str
    line: int
    verb: str
    others: frozenset[int]


def spelled(root: Path) -> list[str]:
    """Find orders outside base, block and tier, orders without a number, and atomics beside the seam."""
    found = []
    for path in core_files(root):
        name = shown(root, path)
        if name in (SEAM, CHECKER_SEAM):
            continue
        may_order = path.relative_to(root / "csrc").parts[0] in MAY_ORDER
        for line, code in enumerate(code_of(path.read_text(encoding="utf-8")).splitlines(), 1):
            for match in _STANDARD.finditer(code):
                found.append(f"{name}:{line}: {match.group()} beside the seam {SEAM}")
            if not may_order and _SITE.search(code):
                found.append(f"{name}:{line}: a memory order outside {' and '.join(MAY_ORDER)}")
            for match in _BARE.finditer(_SITE.sub("", code)):
                found.append(f"{name}:{line}: {match.group(1)} without a number, write at(n, ...)")
    return found


def read_graph(root: Path) -> tuple[dict[int, list[Site]], dict[int, list[Edge]]]:
    """Collect every numbered site and every numbered comment under csrc."""
    sites: dict[int, list[Site]] = {}
    edges: dict[int, list[Edge]] = {}
    for path in core_files(root):
        text = path.read_text(encoding="utf-8")
        name = shown(root, path)
        codes = code_of(text).splitlines()
        for line, (raw, code) in enumerate(zip(text.splitlines(), codes, strict=True), 1):
            for match in _SITE.finditer(code):
                site = Site(f"{name}:{line}", name, line, match.group(2))
                sites.setdefault(int(match.group(1)), []).append(site)
            comment = raw[raw.find("//") :] if "//" in raw else ""
            for match in _COMMENT.finditer(comment):
                others = frozenset(int(n) for n in re.findall(r"\d+", match.group(3)))
                edge = Edge(f"{name}:{line}", name, line, match.group(2), others)
                edges.setdefault(int(match.group(1)), []).append(edge)
    return sites, edges


def _site_findings(number: int, sites: list[Site], edges: list[Edge]) -> list[str]:
    found = []
    if number == 0:
        found.append(f"{sites[0].where}: number 0 is reserved for 'no site'")
    for again in sites[1:]:
        found.append(f"{again.where}: ({number}) is taken by {sites[0].where}")
    if not edges:
        found.append(f"{sites[0].where}: ({number}) has no synchronizes-with comment")
    for second in edges[1:]:
        found.append(f"{second.where}: ({number}) is described at {edges[0].where} already")
    for edge in edges[:1]:
        if edge.file != sites[0].file or not 0 <= sites[0].line - edge.line <= COMMENT_REACH:
            found.append(f"{edge.where}: ({number}) is not within {COMMENT_REACH} lines of its code")
    return found


def _edge_findings(number: int, site: Site, edge: Edge, sites: dict[int, Site], edges: dict[int, Edge]) -> list[str]:
    found = []
    for other in sorted(edge.others):
        pair = f"({number}) {edge.verb} ({other})"
        if other not in sites or other not in edges:
            found.append(f"{edge.where}: {pair}, which does not exist")
            continue
        if number not in edges[other].others or edges[other].verb != edge.verb:
            found.append(f"{edge.where}: {pair}, but ({other}) does not say so")
        one, two = site.order, sites[other].order
        if edge.verb == "orders-with" and (one, two) != ("seq_cst", "seq_cst"):
            found.append(f"{edge.where}: {pair}, but both must be seq_cst")
        joined = (one in _RELEASES and two in _ACQUIRES) or (one in _ACQUIRES and two in _RELEASES)
        if edge.verb == "synchronizes-with" and not joined:
            found.append(f"{edge.where}: {pair}, but {one} and {two} never do")
    return found


def graph(root: Path) -> list[str]:
    """Find numbers used twice, undescribed or unused, and edges that are not mutual or join nothing."""
    all_sites, all_edges = read_graph(root)
    found = []
    for number in sorted(all_edges.keys() - all_sites.keys()):
        found.append(f"{all_edges[number][0].where}: no code spells at({number}, ...)")
    for number in sorted(all_sites):
        found += _site_findings(number, all_sites[number], all_edges.get(number, []))
    sites = {number: of_number[0] for number, of_number in all_sites.items()}
    edges = {number: comments[0] for number, comments in all_edges.items()}
    for number in sorted(sites.keys() & edges.keys()):
        found += _edge_findings(number, sites[number], edges[number], sites, edges)
    return found
