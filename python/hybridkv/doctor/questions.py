# SPDX-License-Identifier: Apache-2.0
"""Questions of the checklist, each with what answers it and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridkv.doctor import answers
from hybridkv.doctor.answers import Answer, Facts

TOPICS = ("races", "state machine", "abi", "graphs", "metrics")


@dataclass(frozen=True)
class Item:
    """One question of the checklist.

    Parameters
    ----------
    name : str
        Of the item, for people and scripts.
    topic : str
        One of :data:`TOPICS`.
    question : str
    remedy : str
        What to do where the answer is no.
    answer : callable
        Takes :class:`Facts`, returns an :data:`Answer`.
    """

    name: str
    topic: str
    question: str
    remedy: str
    answer: Callable[[Facts], Answer]


ITEMS = (
    Item(
        "verify",
        "races",
        "Are the bytes of pages compared with what was published?",
        "verify='sampled'",
        answers.verified,
    ),
    Item(
        "raced",
        "races",
        "Do few look-ups find their blocks changed between check and pin?",
        "evict less while requests are matched: more pages, or a watermark",
        answers.few_races,
    ),
    Item(
        "leaks",
        "races",
        "Is every lease and fill settled by its owner?",
        "cache.leaks() names who dropped them",
        answers.none_counted("leaks"),
    ),
    Item(
        "quarantine",
        "races",
        "Does no page hold bytes that were not published there?",
        "find who writes there: cache.explain()",
        answers.none_counted("quarantined"),
    ),
    Item(
        "settled",
        "state machine",
        "Is every look-up accounted for, once?",
        "report it: this must not be",
        answers.lookups_settle,
    ),
    Item(
        "pages",
        "state machine",
        "Is every page accounted for, once?",
        "report it: this must not be",
        answers.pages_conserved,
    ),
    Item(
        "eviction",
        "state machine",
        "Does eviction keep what makes prefixes usable?",
        "eviction='usability'",
        answers.eviction,
    ),
    Item(
        "placed",
        "state machine",
        "Is there room in the table for every block and tip?",
        "more blocks=",
        answers.none_counted("unplaced"),
    ),
    Item(
        "tier writes",
        "state machine",
        "Does what is published reach the tier?",
        "tier_writes='through' or 'back'",
        answers.tier_writes,
    ),
    Item(
        "formats",
        "abi",
        "Does every group declare the format of its bytes?",
        "CacheGroup(format=...)",
        answers.every_group_has("format", lambda group: group.inside("format")),
    ),
    Item(
        "kernels",
        "abi",
        "Does every group name the kernels that read it?",
        "CacheGroup(kernels=[...])",
        answers.every_group_has("kernel", lambda group: group.texts("kernels")),
    ),
    Item(
        "alignment",
        "abi",
        "Is every pool what its kernels need?",
        "cache.alignment(group) says what to do",
        answers.pools_fit,
    ),
    Item(
        "writers",
        "abi",
        "Can this cache read what every known writer of its tier wrote?",
        "a namespace for each version; hk.formats.negotiate lists every difference",
        answers.writers_agree,
    ),
    Item(
        "identity",
        "abi",
        "Do keys name the model and the revision of its weights?",
        "Identity(model=..., weights=...)",
        answers.identity,
    ),
    Item(
        "salt",
        "abi",
        "Are tenants kept apart by a secret salt?",
        "Identity(salt=...), set by the gateway",
        answers.salted,
    ),
    Item(
        "gpu",
        "abi",
        "Is there one GPU family, so that one set of formats is written?",
        "a namespace for each family",
        answers.gpu_family,
    ),
    Item(
        "engines",
        "abi",
        "Is it known which formats the installed engines write?",
        "declare the formats, and prove them",
        answers.versions_known,
    ),
    Item(
        "records",
        "abi",
        "Was every record of a tier stored and loaded whole?",
        "hybridkv verify STORE",
        answers.no_lost_records,
    ),
    Item(
        "widths",
        "graphs",
        "Does the cache know how wide captured block tables are?",
        "cache.set_graph_widths(...)",
        answers.widths,
    ),
    Item(
        "guarded",
        "graphs",
        "Does a topology guard the captured graphs?",
        "hk.graph.Topology.capture(..., cache=cache), and route each step",
        answers.guarded,
    ),
    Item(
        "memory",
        "graphs",
        "Did every step find the memory that its graph was captured with?",
        "capture anew after a pool is bound, reset or moved",
        answers.memory_stays,
    ),
    Item(
        "eager",
        "graphs",
        "Do few steps run without their graph?",
        "capture wider tables",
        answers.few_eager,
    ),
    Item(
        "copies",
        "graphs",
        "Did every copy between device and host succeed?",
        "TransferResult.device_error says why",
        answers.none_counted("copy_failures"),
    ),
    Item(
        "counted",
        "metrics",
        "Are look-ups counted?",
        "send traffic, then ask again",
        answers.is_watched,
    ),
    Item(
        "effective",
        "metrics",
        "Do at least half of the hits go on from what they found?",
        "verdict.why, metrics().lost_tokens",
        answers.effective,
    ),
    Item(
        "canary",
        "metrics",
        "Does a canary recompute a sample of hits and find no difference?",
        "recompute a sample and compare",
        answers.canary,
    ),
)
"""The checklist, in the order of its topics."""
