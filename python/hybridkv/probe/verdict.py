# SPDX-License-Identifier: Apache-2.0
"""The verdict: a closed set, each with the exit status of the command."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from hybridkv.probe.control import Control
from hybridkv.probe.identity import Identity
from hybridkv.probe.search import Reuse
from hybridkv.probe.trials import Observation

WANTED = 2
"""Changed answers that it takes: one alone may be a hiccup of the service."""

_LEAST_SEEN_SHARE = 0.5
_LEAST_PAIRS = 2


class ProbeVerdict(StrEnum):
    """What a probe says of a service."""

    CONSISTENT = "consistent"
    """Hits were compared, and every answer is the one of a computation from scratch."""
    FALSE_HITS = "false hits seen"
    """Answers behind a hit differ from the same tokens computed from scratch, by more than noise, again and again."""
    NO_REUSE = "no reuse observed"
    """Nothing was reused, so nothing could be wrong with it."""
    CANNOT_TELL = "cannot tell"
    """No log-probabilities, no count of cached tokens, too much noise, a service that fails or contradicts itself."""


EXIT_STATUS = {
    ProbeVerdict.CONSISTENT: 0,
    ProbeVerdict.FALSE_HITS: 1,
    ProbeVerdict.NO_REUSE: 3,
    ProbeVerdict.CANNOT_TELL: 4,
}
"""Exit status by verdict; 2 is a refused argument."""


def exceeding(observations: Sequence[Observation], control: Control) -> list[Observation]:
    """Return what changed by more than noise, and what was answered as another prompt was."""
    return [one for one in observations if _is_wrong(one, control)]


def _is_wrong(one: Observation, control: Control) -> bool:
    if one.from_other is not None:
        return bool(one.impossible) and one.from_other <= control.tolerance
    return one.apart is not None and one.apart.largest > control.tolerance


def judge(
    reuse: Reuse | None,
    control: Control,
    observations: Sequence[Observation],
    identity: Identity,
    *,
    logprobs: bool,
    stopped: str,
) -> tuple[ProbeVerdict, str]:
    """Choose the verdict.

    Parameters
    ----------
    reuse : Reuse or None
        None where the probe did not come so far.
    control, observations, identity
        What was measured.
    logprobs : bool
        Whether the service gives log-probabilities.
    stopped : str
        Why the probe ended early; empty where it did not.

    Returns
    -------
    ProbeVerdict, str
        And the reason, one sentence.
    """
    wrong = exceeding(observations, control)
    measured = len(control.same) + len(control.chunked) >= _LEAST_PAIRS
    visible = not control.changed or control.seen_share >= _LEAST_SEEN_SHARE
    foreign = [name for name, change in identity.changes.items() if change > control.tolerance]
    if measured and visible and (len(wrong) >= WANTED or foreign):
        return ProbeVerdict.FALSE_HITS, _wrong(wrong, foreign, control)
    if stopped:
        return ProbeVerdict.CANNOT_TELL, f"it ended early: {stopped}"
    if not logprobs:
        return ProbeVerdict.CANNOT_TELL, "the service gives no log-probabilities; equal tokens prove little"
    if reuse is None or not reuse.reported:
        return ProbeVerdict.CANNOT_TELL, "the service does not say how many tokens it reused (cached_tokens)"
    impossible = [one for one in observations if one.impossible]
    if impossible:
        return ProbeVerdict.CANNOT_TELL, f"what it says of reuse cannot be true: {impossible[0].impossible}"
    if not reuse.least:
        tried = f"prompts of up to {reuse.longest_tried} tokens were sent again, cached_tokens stayed 0"
        return ProbeVerdict.NO_REUSE, tried
    if not measured:
        return ProbeVerdict.CANNOT_TELL, "no two answers to the same tokens came without reuse: its noise is not known"
    if not visible:
        noise = f"noise of {control.noise:.3g} nats hides what another block before the suffix would change"
        return ProbeVerdict.CANNOT_TELL, noise
    if wrong:
        return ProbeVerdict.CANNOT_TELL, f"one answer differed ({wrong[0].trial.name}) and never again"
    if not any(one.reused and one.apart is not None for one in observations):
        return ProbeVerdict.CANNOT_TELL, "no hit came where it could be compared"
    return ProbeVerdict.CONSISTENT, "every answer behind a hit is that of a computation from scratch, within noise"


def _wrong(wrong: Sequence[Observation], foreign: Sequence[str], control: Control) -> str:
    if len(wrong) < WANTED:
        return f"behind another model's prefix {foreign[0]} answers otherwise than from scratch"
    largest = max((one.apart.largest for one in wrong if one.apart is not None), default=None)
    if largest is None:
        return f"{len(wrong)} prompts were answered from the cache of another prompt: {wrong[0].impossible}"
    return (
        f"{len(wrong)} answers behind a hit differ from the same tokens computed from scratch, by up to "
        f"{largest:.3g} nats where noise is {control.noise:.3g}"
    )
