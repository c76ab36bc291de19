# SPDX-License-Identifier: Apache-2.0
"""Why a look-up found nothing in a tier that is not empty: which writer's records are there, and what differs.

Thread safety: any thread may call; `meet` once, before the others. Counting takes a lock, on the way of look-ups alone
that found nothing to use beside records that this cache cannot read.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from hybridkv.errors import ArgumentError, TierError
from hybridkv.formats.manifest import Manifest
from hybridkv.formats.negotiation import Refusal, negotiate
from hybridkv.kinds import Check, Outcome, StateKind
from hybridkv.tiers.records import Answer, RecordKey, RecordKind

if TYPE_CHECKING:
    from hybridkv.tiers import Tier
    from hybridkv.verdict import Verdict

MODES = ("apart", "refuse")

UNKNOWN = "unknown writer"
"""Stands for records of another format whose writer's manifest nobody has told the tier."""

_OTHER_KEYS = ("identity", "unit_tokens", "key_profile")


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
        self._met: tuple[tuple[Manifest, ...], tuple[tuple[Manifest, Refusal], ...]] = ((), ())  # replaced as one

    def meet(self, own: Manifest, tier: Tier) -> None:
        """Negotiate with everybody who is known to have written into a tier.

        Raises
        ------
        TierError
            Mode "refuse", and a writer whose records cannot be read; nothing has changed.
        """
        self._own, self._tier = own, tier
        if self._mode != "refuse":
            return
        for writer in tier.manifests:
            told = negotiate(own, writer)
            if isinstance(told, Refusal):
                expected = "a tier whose writers this spec can read"
                raise TierError("tier", expected, str(told), differences=told.differences)

    def note(self, verdict: Verdict) -> None:
        """Count a look-up that found nothing to use, where other records in the tier may be why."""
        if verdict._outcome == Outcome.MISS:
            causes = self._other_keys()
        else:
            why = verdict.why
            foreign = why is not None and why.check is Check.ABI and why.kind is StateKind.DISK
            causes = self._writers_of(verdict) if foreign else []
        if causes:
            with self._lock:
                self._counts.update(causes)

    def counts(self) -> dict[str, int]:
        """Return look-ups by what differs."""
        with self._lock:
            return dict(self._counts)

    def _other_keys(self) -> list[str]:
        """Return the fields by which keys of known writers are never keys of this cache."""
        found = []
        for _, told in self._refused():
            found += [d.where for d in told.differences if d.reason and d.field.partition(".")[0] in _OTHER_KEYS]
        return sorted(set(found))

    def _writers_of(self, verdict: Verdict) -> list[str]:
        """Return what differs in the records that lie where this look-up failed, where their writer is known."""
        why, tier = verdict.why, self._tier
        if why is None or tier is None:
            return []
        group = verdict._cache.spec.group(why.group)
        unit = verdict._cache.spec.unit_tokens
        last = (why.block + 1) * (group.block_tokens or unit) // unit - 1
        if last >= len(verdict._keys):
            return [UNKNOWN]
        digest = verdict._keys[last : last + 1].digests[0].tobytes()
        for writer, told in self._refused():
            for form, kind in zip(writer.records, RecordKind, strict=True):
                if tier.look(RecordKey(digest, form, kind)).answer is Answer.HERE:
                    return [told.because]
        return [UNKNOWN]

    def _refused(self) -> tuple[tuple[Manifest, Refusal], ...]:
        """Return the known writers whose records are not ours, with what stands in the way."""
        if self._own is None or self._tier is None:
            return ()
        known, refused = self._met
        if known is not self._tier.manifests:
            own, known = self._own, self._tier.manifests
            answers = [(writer, negotiate(own, writer)) for writer in known if writer != own]
            refused = tuple((writer, told) for writer, told in answers if isinstance(told, Refusal))
            self._met = (known, refused)
        return refused
