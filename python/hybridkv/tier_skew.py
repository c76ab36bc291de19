# SPDX-License-Identifier: Apache-2.0
"""Why a look-up found nothing in a tier that is not empty: which writer's records are there, and what differs.

Thread safety: any thread may call; `meet` once, before the others, and `change` one at a time. Counting takes a lock,
on the way of look-ups alone that found nothing to use beside records that this cache cannot read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridkv.errors import ArgumentError, TierError
from hybridkv.formats.manifest import Manifest
from hybridkv.formats.negotiation import PREFIX_RULE, Agreement, Difference, Refusal, negotiate, worst_first
from hybridkv.formats.severity import COSMETIC
from hybridkv.kinds import Check, Outcome
from hybridkv.tiers.records import Answer, RecordKey, RecordKind

if TYPE_CHECKING:
    from hybridkv.tiers import Tier
    from hybridkv.verdict import Verdict

MODES = ("apart", "refuse")

UNKNOWN = "unknown writer"
"""Stands for records of another format whose writer's manifest nobody has told the tier."""

_Answer = Agreement | Refusal
_Apart = tuple[tuple[Manifest, _Answer], ...]

_OTHER_UNITS = ("unit_tokens", "key_profile")
_OTHER_KEYS = ("identity", *_OTHER_UNITS)


class TierSkew:
    """Counts look-ups that other formats or identities cost, by the field that differs.

    Parameters
    ----------
    mode : {"apart", "refuse"}
        As ``HybridCache(tier_skew=)``.

    Raises
    ------
    ArgumentError
        No such mode.
    """

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ArgumentError("tier_skew", f"one of {list(MODES)}", mode)
        self._mode = mode
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._own: Manifest | None = None
        self._tier: Tier | None = None
        self._met: tuple[Manifest | None, tuple[Manifest, ...], _Apart] = (None, (), ())  # replaced as one

    def meet(self, own: Manifest, tier: Tier) -> None:
        """Negotiate with everybody who is known to have written into a tier.

        Raises
        ------
        TierError
            Mode "refuse", and a writer whose records cannot be read as they are, which a restore does: ``differences``
            has all of them, ``plans`` the conversions by group where they would do. Nothing has changed.
        """
        self._own, self._tier = own, tier
        if self._mode != "refuse":
            return
        for writer in tier.manifests:
            told = negotiate(own, writer)
            if isinstance(told, Refusal) or not told.exact:
                expected = "a tier whose writers' records can be read as they are"
                plans = {} if isinstance(told, Refusal) else told.conversions
                raise TierError("tier", expected, _because(told), differences=told.differences, plans=plans)

    def change(self, own: Manifest) -> None:
        """Compare with another manifest from now on: the cache has another identity."""
        self._own = own

    def note(self, verdict: Verdict) -> None:
        """Count a look-up that found nothing to use, where other records in the tier may be why."""
        raw = verdict._why
        if verdict._outcome == Outcome.MISS:
            causes = self._other_keys(verdict)
        elif raw is not None and raw[0] == Check.ABI and raw[4]:
            causes = [next((d.where for d in self.differences(verdict) if d.severity != COSMETIC), UNKNOWN)]
        else:
            return
        if causes:
            with self._lock:
                self._counts.update(causes)

    def differences(self, verdict: Verdict) -> tuple[Difference, ...]:
        """Return what the writer of the record that a look-up was lost to declares otherwise, the worst first.

        Empty where the record's writer is not known, or the record has gone.
        """
        raw, own, tier = verdict._why, self._own, self._tier
        if raw is None or own is None or tier is None:
            return ()
        spec = verdict._cache.spec
        last = (raw[2] + 1) * (spec.groups[raw[1]].block_tokens or spec.unit_tokens) // spec.unit_tokens - 1
        if last >= len(verdict._keys):
            return ()
        digest = verdict._keys[last : last + 1].digests[0].tobytes()
        for writer, told in self._apart():
            for form, kind in zip(writer.records, RecordKind, strict=True):
                if tier.look(RecordKey(digest, form, kind)).answer is Answer.HERE:
                    return tuple(_in_record(kind, own, writer, told))
        return ()

    def counts(self) -> dict[str, int]:
        """Return look-ups by what differs."""
        with self._lock:
            return dict(self._counts)

    def _other_keys(self, verdict: Verdict) -> list[str]:
        """Return the fields by which keys of known writers are never those that were looked for."""
        asked = verdict._keys.identity  # that of before an update may be asked for still
        found = set()
        for writer, told in self._apart():
            same = asked is not None and asked.fingerprint == writer.identity
            names = _OTHER_UNITS if same else _OTHER_KEYS
            found |= {d.where for d in told.differences if d.reason and d.field.partition(".")[0] in names}
        return sorted(found)

    def _apart(self) -> _Apart:
        """Return the known writers whose records are not ours, with what differs."""
        own, tier = self._own, self._tier
        if own is None or tier is None:
            return ()
        ours, known, apart = self._met
        if ours is not own or known is not tier.manifests:
            known = tier.manifests
            others = [writer for writer in known if _names(writer) != _names(own)]
            answers = ((writer, negotiate(own, writer)) for writer in others)
            apart = tuple((writer, told) for writer, told in answers if told.differences)
            self._met = (own, known, apart)
        return apart


def _names(writer: Manifest) -> tuple[object, ...]:
    """Return what decides under which names records of a writer are found."""
    return writer.records, writer.identity, writer.unit_tokens, writer.key_profile


def _in_record(kind: RecordKind, ours: Manifest, writer: Manifest, told: _Answer) -> Iterator[Difference]:
    """Leave out, of a block's record, what differs in groups that it does not hold: windows and states."""
    history = {group.name for group in (*ours.groups, *writer.groups) if group.coverage[0] == PREFIX_RULE}
    for difference in worst_first(told.differences):
        if kind is RecordKind.BOUNDARY or not difference.group or difference.group in history:
            yield difference


def _because(told: _Answer) -> str:
    return "; ".join(map(str, told.differences))
