# SPDX-License-Identifier: Apache-2.0
"""What a replay makes right, by definition: a row is right if everything that it is made from is right.

`Replay` runs layers over tokens and keeps a flag for each row and each output. Nothing is known of windows and tails
but what it is told is stored; history below the length is stored and right. It knows no distances: those are what it
is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import assume
from hypothesis import strategies as st

import hybridkv as hk
from hybridkv.coverage import Coverage

Place = int | float | str
OVERLAP = hk.KvFormat("compressor_rows", "float32", overlap=True)


def is_overlap(group: hk.CacheGroup) -> bool:
    return group.coverage == hk.Checkpoint() and group.format is not None and bool(group.format.overlap)


def is_endless(group: hk.CacheGroup) -> bool:
    """A state of the whole prefix, which queries go on from; a tail where it is declared what a replay of it takes."""
    return group.coverage == hk.Checkpoint() and not is_overlap(group) and group.replay_tokens is None


def needed(group: hk.CacheGroup, t: int) -> range:
    """Tokens whose rows of one layer a resume at t needs."""
    rule = group.coverage
    if isinstance(rule, hk.Window):
        return range(max(0, t - rule.tokens + 1), t)
    if isinstance(rule, hk.Chunk):
        return range(t - t % rule.tokens, t)
    assert isinstance(rule, hk.Checkpoint)
    if rule.every is not None:
        return range(t - t % rule.every, t)
    if is_endless(group):
        return range(t)
    if not is_overlap(group):  # a tail of unknown make: the newest token goes into it
        return range(max(0, t - 1), t)
    rows = group.rows_per_page or 1
    closed = t - t % rows
    return range(max(0, closed - rows), closed)


def seen(group: hk.CacheGroup, query: int) -> range:
    """Tokens whose rows of one layer the query at a token reads, its own included; of tails none: history has them."""
    rule = group.coverage
    if isinstance(rule, hk.Window):
        return range(max(0, query - rule.tokens + 1), query + 1)
    if isinstance(rule, hk.Chunk):
        return range(query - query % rule.tokens, query + 1)
    return range(query + 1) if is_endless(group) else range(0)


class Replay:
    """What running layers over tokens makes right.

    `starts` has the first token of each layer, from the lowest; `stored` the rows that a group has, of a state of the
    whole prefix nothing that a query before t could use; `places` the layers of groups, where they are not those of
    the spec.
    """

    def __init__(
        self,
        spec: hk.CacheSpec,
        t: int,
        starts: Mapping[Place, int],
        stored: Mapping[str, range] | None = None,
        places: Mapping[str, Sequence[Place]] | None = None,
    ) -> None:
        self.t, self.stored = t, stored or {}
        self.states = [g for g in spec.groups if not isinstance(g.coverage, hk.Prefix)]
        self.places = {g.name: (places or {}).get(g.name, g.layers) for g in self.states}
        self.made: dict[Place, set[int]] = {}  # tokens whose rows a layer made right
        put_out = set(range(t))  # of the layer below; of the lowest: embeddings
        for layer, start in starts.items():
            ran = set(range(max(start, 0), t))
            self.made[layer] = ran & put_out
            reads = [g for g in self.states if layer in self.places[g.name]]
            put_out = {j for j in self.made[layer] if all(self.right(g, layer, seen(g, j)) for g in reads)}

    def right(self, group: hk.CacheGroup, layer: Place, tokens: range) -> bool:
        stored = () if is_endless(group) else self.stored.get(group.name, ())
        return all(j in self.made[layer] or j in stored for j in tokens)

    def whole(self) -> bool:
        """Whether every state group is right at t."""
        return all(self.whole_group(g) for g in self.states)

    def whole_group(self, group: hk.CacheGroup) -> bool:
        """Whether a group's rows of all its layers are right at t, stored or made."""
        if is_endless(group) and group.name in self.stored:
            return True
        return all(self.right(group, layer, needed(group, self.t)) for layer in self.places[group.name])

    def right_entries(self, layer: Place, ratio: int, *, overlap: bool) -> set[int]:
        """Entries below t that a layer's compressor would write right."""
        windows = range(self.t // ratio)
        first = {i: (i - overlap) * ratio for i in windows}
        return {i for i in windows if set(range(max(first[i], 0), (i + 1) * ratio)) <= self.made[layer]}


def group(name: str, coverage: Coverage, layers: list[int], **more: object) -> hk.CacheGroup:
    kinds = {hk.Prefix: hk.StateKind.COMPRESSED, hk.Checkpoint: hk.StateKind.TAIL}
    kind = kinds.get(type(coverage), hk.StateKind.WINDOW)
    return hk.CacheGroup(name, kind, coverage, page_bytes=64, layers=layers, **more)  # type: ignore[arg-type]


@st.composite
def specs(draw: st.DrawFn) -> hk.CacheSpec:
    """Models of up to five layers with history in all and windows, chunks and tails in some."""
    count = draw(st.integers(1, 5))
    chosen = st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(sorted)
    groups = [group("kv", hk.Prefix(), list(range(count)))]
    rest = list(range(count))
    for name, rule in (("a", hk.Window), ("b", hk.Window), ("c", hk.Chunk)):
        mine = [layer for layer in draw(chosen) if layer in rest] if draw(st.booleans()) else []
        if mine:
            groups.append(group(name, rule(draw(st.integers(1, 6))), mine))
            rest = [layer for layer in rest if layer not in mine]
    if draw(st.booleans()):
        every = draw(st.integers(1, 5))
        groups.append(group("open", hk.Checkpoint(every=every), draw(chosen), rows_per_page=every))
    if draw(st.booleans()):
        rows = draw(st.integers(1, 3))
        groups.append(group("overlap", hk.Checkpoint(), draw(chosen), rows_per_page=rows, format=OVERLAP))
    assume(len(groups) > 1)
    return hk.CacheSpec(draw(st.integers(1, 4)), groups)


def everywhere(spec: hk.CacheSpec, start: int) -> dict[Place, int]:
    return dict.fromkeys(spec["kv"].layers, start)
