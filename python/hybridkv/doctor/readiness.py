# SPDX-License-Identifier: Apache-2.0
"""A checklist: is a stack ready for reuse that is right? Each item is a question that facts answer.

"cannot tell" is no yes: what nobody knows is not met.
"""

from __future__ import annotations

from hybridkv.doctor.answers import YES, CacheFacts, Facts
from hybridkv.doctor.documents import Json
from hybridkv.doctor.questions import ITEMS, TOPICS


def readiness(host: Json, cache: Json | None = None) -> Json:
    """Answer the checklist.

    Parameters
    ----------
    host : dict
        What :func:`~hybridkv.doctor.doctor` returned, here or elsewhere.
    cache : dict, optional
        What :func:`~hybridkv.doctor.cache_facts` returned.

    Returns
    -------
    dict
        ``met`` and ``asked``; ``topics`` with the same of each; ``items``, each with ``name``, ``topic``, ``question``,
        ``answer`` ("yes", "no" or "cannot tell"), ``evidence`` and, where it is not met, ``remedy``.

    Raises
    ------
    ArgumentError
        A fact of a wrong type.
    """
    facts = Facts(host, None if cache is None else CacheFacts("cache", cache))
    items: list[Json] = []
    for item in ITEMS:
        answer, evidence = item.answer(facts)
        items.append(
            {
                "name": item.name,
                "topic": item.topic,
                "question": item.question,
                "answer": answer,
                "evidence": evidence,
                "remedy": None if answer == YES else item.remedy,
            }
        )
    topics = {topic: _score([item for item in items if item["topic"] == topic]) for topic in TOPICS}
    return {**_score(items), "topics": topics, "items": items}


def _score(items: list[Json]) -> Json:
    return {"met": sum(item["answer"] == YES for item in items), "asked": len(items)}
