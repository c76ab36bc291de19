# SPDX-License-Identifier: Apache-2.0
"""What a configuration can never do, known before the first request: lengths that no hit can have, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hybridkv.arguments import count, length
from hybridkv.checkpoints import CheckpointPolicy
from hybridkv.coverage import Checkpoint, Prefix
from hybridkv.errors import ArgumentError
from hybridkv.group import CacheGroup
from hybridkv.inspection import own_block_tokens
from hybridkv.spec import CacheSpec


@dataclass(frozen=True, slots=True)
class GroupReach:
    """What one group lets a cache do.

    Attributes
    ----------
    group : str
    block_tokens : int
        Tokens of its own block; usable lengths are multiples of it, where it cannot be computed again.
    raises_step : bool
        Whether it takes part in the step of usable lengths.
    pages : int or None
        Of its pool, where that was given.
    least_pages : int or None
        What one prefix of the shortest usable length holds; None where there is no such length.
    longest_tokens : int or None
        Longest usable length of one prefix that its pool has room for; None where it sets no limit, or was not given.
    """

    group: str
    block_tokens: int
    raises_step: bool
    pages: int | None
    least_pages: int | None
    longest_tokens: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a configuration can never do.

    Attributes
    ----------
    kind : str
        "step": usable lengths are too far apart; "pool": a pool is too small for one prefix; "keys": so is the table of
        keys; "states": lengths at which states are kept are too far apart.
    group : str or None
        The group that it is because of; None where it is no group's doing.
    below_tokens, above_tokens : int or None
        No hit has fewer, or more, tokens than this.
    affected : int
        How many of the prompt lengths given can never hit because of it; 0 where none were given.
    never : bool
        Whether nothing can ever hit, or none of the prompt lengths given.
    text : str
        One sentence.
    setting : str
        What to change.
    """

    kind: str
    group: str | None
    below_tokens: int | None
    above_tokens: int | None
    affected: int
    never: bool
    text: str
    setting: str


@dataclass(frozen=True, slots=True)
class StaticChecks:
    """What :func:`static_checks` found.

    Attributes
    ----------
    least_tokens : int
        No hit is shorter, but for tips: the ends of earlier requests, inside a unit or not, resumed exactly there.
    because_of : str or None
        The group whose block makes it so; None where every group can be computed again.
    stride_tokens : int or None
        Distance of the lengths at which states are kept inside a prompt, a multiple of ``least_tokens``; None where
        they are kept at ends, and where requests parted, alone.
    groups : tuple of GroupReach
    findings : tuple of Finding
        What can never hit, the gravest first; empty where nothing was found.
    """

    least_tokens: int
    because_of: str | None
    stride_tokens: int | None
    groups: tuple[GroupReach, ...]
    findings: tuple[Finding, ...]

    @property
    def sentence(self) -> str:
        """The rule of this configuration in one sentence."""
        cause = "the unit" if self.because_of is None else f"group {self.because_of!r}"
        return f"this configuration cannot hit below {self.least_tokens} tokens because of {cause}, but for tips"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as one object of JSON."""
        return {**asdict(self), "sentence": self.sentence}

    def lines(self) -> list[str]:
        """Return all of it as lines of text."""
        lines = [self.sentence[0].upper() + self.sentence[1:] + "."]
        if self.stride_tokens is None:
            lines.append("States are kept at ends of prompts and answers, and where requests part, alone.")
        elif self.stride_tokens != self.least_tokens:
            lines.append(f"States are kept every {self.stride_tokens} tokens.")
        for found in self.findings:
            lines += [f"{'NEVER' if found.never else found.kind}: {found.text}.", f"    {found.setting}"]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def static_checks(
    spec: CacheSpec,
    *,
    pages: Mapping[str, int] | None = None,
    blocks: int | None = None,
    prompt_tokens: Iterable[int] = (),
    checkpoints: CheckpointPolicy | None = None,
    step_tokens: int | None = None,
) -> StaticChecks:
    """Tell what a configuration can never do.

    Parameters
    ----------
    spec : CacheSpec
    pages : mapping of str to int, optional
        Pages of each group's pool. Default: pools are not looked at.
    blocks : int, optional
        Descriptors of the table. Default: not looked at.
    prompt_tokens : iterable of int, optional
        Lengths of typical prompts: which of them can never hit.
    checkpoints : CheckpointPolicy, optional
        What keeps states. Default: every boundary that a step ends at.
    step_tokens : int, optional
        Tokens that the engine computes of a prompt at a time: states exist only where such a step ends. Default: a
        step ends wherever it is useful.

    Returns
    -------
    StaticChecks

    Raises
    ------
    ArgumentError
        Not a spec or a policy, a group that the spec does not have, or no number.

    Examples
    --------
    >>> import hybridkv as hk
    >>> full = hk.CacheGroup("full", hk.StateKind.COMPRESSED, hk.Prefix(), page_bytes=64)
    >>> tail = hk.CacheGroup("tail", hk.StateKind.TAIL, hk.Checkpoint(), page_bytes=64, block_tokens=1024)
    >>> found = static_checks(hk.CacheSpec(16, [full, tail]), prompt_tokens=[300, 900, 5000])
    >>> found.sentence
    "this configuration cannot hit below 1024 tokens because of group 'tail', but for tips"
    >>> print(found.findings[0].text)
    2 of 3 prompt lengths are at most 1024 tokens, a block of 'tail': nothing of them is ever usable
    """
    if not isinstance(spec, CacheSpec):
        raise ArgumentError("spec", "a CacheSpec", type(spec).__name__)
    if checkpoints is not None and not isinstance(checkpoints, CheckpointPolicy):
        raise ArgumentError("checkpoints", "a CheckpointPolicy", checkpoints)
    lengths = sorted(length("prompt_tokens", tokens) for tokens in prompt_tokens)
    names = [group.name for group in spec.groups]
    given = dict(pages or {})
    for name in given:
        if name not in names:
            raise ArgumentError("pages", f"groups among {', '.join(names)}", name)
    each = None if step_tokens is None else count("step_tokens", step_tokens)
    table = None if blocks is None else count("blocks", blocks)
    reach = tuple(_reach(spec, g, given.get(g.name)) for g in spec.groups)
    least = spec.boundary_tokens
    stride = _stride(spec, checkpoints, each)
    found = [
        *_of_pools(reach, least, lengths),
        *_of_keys(spec, table, lengths),
        *_of_step(spec, lengths),
        *_of_states(spec, stride, checkpoints, each, lengths),
    ]
    found.sort(key=lambda finding: (not finding.never, -finding.affected))
    return StaticChecks(least, spec.boundary_group, stride, reach, tuple(found))


def _reach(spec: CacheSpec, group: CacheGroup, pages: int | None) -> GroupReach:
    pages = None if pages is None else count("pages", pages)
    least = len(group.need(spec.boundary_tokens).blocks)
    return GroupReach(
        group.name, own_block_tokens(group), not group.rebuildable, pages, least, _longest(spec, group, pages)
    )


def _longest(spec: CacheSpec, group: CacheGroup, pages: int | None) -> int | None:
    """Return the longest usable length that a pool has room for; None where it sets no limit."""
    if pages is None or group.rebuildable:
        return None
    room = pages * own_block_tokens(group) // spec.boundary_tokens * spec.boundary_tokens
    if isinstance(group.coverage, Prefix):
        return room
    needed = spec.boundary_bytes[group.name] // group.total_page_bytes
    return None if isinstance(group.coverage, Checkpoint) or needed <= pages else room


def _keeps_states(spec: CacheSpec) -> bool:
    return any(not isinstance(g.coverage, Prefix) and not g.rebuildable for g in spec.groups)


def _stride(spec: CacheSpec, checkpoints: CheckpointPolicy | None, step_tokens: int | None) -> int | None:
    """Return the distance of lengths that keep their states inside a prompt; None where none there does."""
    stride = spec.boundary_tokens
    if not _keeps_states(spec):
        return stride
    if step_tokens is not None:
        stride = math.lcm(stride, step_tokens)
    if checkpoints is not None:
        if checkpoints.every is None:
            return None
        stride = math.lcm(stride, -(-checkpoints.every // spec.boundary_tokens) * spec.boundary_tokens)
    return stride


def _of_step(spec: CacheSpec, lengths: list[int]) -> Iterable[Finding]:
    least = spec.boundary_tokens
    short = sum(tokens <= least for tokens in lengths)
    if not short:
        return
    whose = "the unit" if spec.boundary_group is None else f"a block of {spec.boundary_group!r}"
    yield Finding(
        "step",
        spec.boundary_group,
        least,
        None,
        short,
        short == len(lengths),
        f"{short} of {len(lengths)} prompt lengths are at most {least} tokens, {whose}: nothing of them is ever usable",
        f"a smaller block for {spec.boundary_group!r}"
        if least != spec.unit_tokens
        else "a smaller unit_tokens, or keep_tips, where turns of one conversation follow each other",
    )


def _of_pools(reach: Iterable[GroupReach], least: int, lengths: list[int]) -> Iterable[Finding]:
    for group in reach:
        longest = group.longest_tokens
        if longest is None:
            continue
        long = sum((tokens - 1) // least * least > longest for tokens in lengths)
        if longest >= least and not long:
            continue
        wanted = group.least_pages or 1
        if lengths:
            wanted = max(wanted, -(-((lengths[-1] - 1) // least * least) // group.block_tokens))
        never = longest < least
        what = "no usable length" if never else f"no length above {longest} tokens"
        yield Finding(
            "pool",
            group.group,
            None,
            longest,
            len(lengths) if never else long,
            never,
            f"{group.group!r} has {group.pages} pages of {group.block_tokens} tokens: room for {what} of one prefix",
            f"pages={{{group.group!r}: {wanted}}} or more",
        )


def _of_keys(spec: CacheSpec, blocks: int | None, lengths: list[int]) -> Iterable[Finding]:
    """Find a table that has not even the keys of one prefix."""
    recorded = [own_block_tokens(g) for g in spec.groups if isinstance(g.coverage, Prefix)]
    if blocks is None or not recorded:
        return
    distance = math.gcd(*recorded)
    longest = blocks * distance // spec.boundary_tokens * spec.boundary_tokens
    long = sum((tokens - 1) // spec.boundary_tokens * spec.boundary_tokens > longest for tokens in lengths)
    if longest >= spec.boundary_tokens and not long:
        return
    never = longest < spec.boundary_tokens
    wanted = -(-max(spec.boundary_tokens, *lengths, 0) // distance)
    yield Finding(
        "keys",
        None,
        None,
        longest,
        len(lengths) if never else long,
        never,
        f"{blocks} descriptors hold the keys of {longest} tokens of one prefix at most",
        f"blocks={wanted} or more",
    )


def _of_states(
    spec: CacheSpec, stride: int | None, checkpoints: CheckpointPolicy | None, step: int | None, lengths: list[int]
) -> Iterable[Finding]:
    """Find states that are kept too far apart for prompts that begin alike and end differently."""
    if stride is None or stride == spec.boundary_tokens or not lengths:
        return
    short = sum(spec.boundary_tokens < tokens <= stride for tokens in lengths)
    if not short:
        return
    policy = checkpoints is not None and checkpoints.every is not None
    group = next(g.name for g in spec.groups if not isinstance(g.coverage, Prefix) and not g.rebuildable)
    yield Finding(
        "states",
        group,
        stride,
        None,
        short,
        short == len(lengths),
        f"{short} of {len(lengths)} prompt lengths are at most {stride} tokens, the distance at which states of "
        f"{group!r} are kept inside a prompt: two that begin alike share nothing, unless one is the start of the other",
        f"CheckpointPolicy(every={spec.boundary_tokens})"
        if policy
        else f"steps that end at multiples of {spec.boundary_tokens} tokens, or states= in grow, not every {step}",
    )
