# SPDX-License-Identifier: Apache-2.0
"""What doctor found, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from hybridkv.doctor.answers import NO, NO_CACHE
from hybridkv.doctor.documents import Json
from hybridkv.printed import page

_PLAIN = (
    *("hybridkv", "key_profile", "format_schema", "record_version", "store_version", "cpu_features", "cuda", "python"),
    *("numpy", "platform", "torch"),
)
_WIDTH = 120


def host_text(document: Json) -> str:
    """Return facts of a host, the checklist where it was asked."""
    lines = [f"{name.replace('_', ' '):<14} {_one_line(document[name])}" for name in _PLAIN]
    lines += [f"{'gpu':<14} {_gpu(document['gpu'])}"]
    lines += ["", "engines", *_engines(document)]
    lines += ["", "formats they write", *_formats(document)]
    lines += ["", f"kernels whose needs of a pool are known here: {', '.join(document['kernels'])}"]
    if "readiness" in document:
        lines += ["", *_readiness(document["readiness"])]
    return page(lines)


def _one_line(value: object) -> str:
    return ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)


def _gpu(gpu: Json) -> str:
    if not gpu["devices"]:
        return f"none: {gpu['reason']}"
    names = [f"{device['name'] or 'unnamed'} ({device['family'] or 'family not told'})" for device in gpu["devices"]]
    return f"{', '.join(names)}; driver for CUDA {gpu['driver']}"


def _engines(document: Json) -> Iterator[str]:
    absent = [name for name, facts in document["engines"].items() if facts["version"] is None]
    for name, facts in document["engines"].items():
        if facts["version"] is not None:
            role = f"{facts['role']}: " if facts["role"] else ""
            yield f"  {name} {facts['version']}: {role}{facts['source']}"
    if absent:
        yield f"  not installed: {', '.join(absent)}"


def _formats(document: Json) -> Iterator[str]:
    if not document["formats"]:
        yield "  none is known"
    for entry in document["formats"]:
        here = {True: "", False: "; not on this GPU family", None: ""}[entry["written_here"]]
        only = f" (on {', '.join(entry['families'])})" if entry["families"] else ""
        yield f"  {entry['name']:<26} {entry['engine']}{only}: {entry['ours']}{here}"


def _readiness(checklist: Json) -> Iterator[str]:
    yield f"ready for reuse that is right: {checklist['met']} of {checklist['asked']} questions answered yes"
    blind = sum(item["evidence"] == NO_CACHE[1] for item in checklist["items"])
    if blind:
        yield f"  {NO_CACHE[1]}: {blind} questions cannot be answered"
    for topic, score in checklist["topics"].items():
        yield f"  {topic}: {score['met']} of {score['asked']}"
        for item in checklist["items"]:
            if item["topic"] == topic:
                evidence = "" if item["evidence"] == NO_CACHE[1] else f" ({item['evidence']})"
                yield f"    {item['answer']:<12} {item['question']}{evidence}"
                if item["answer"] == NO:
                    yield f"    {'':<12} -> {item['remedy']}"


def comparison_text(document: Json) -> str:
    """Return what differs between two hosts."""
    told = [f"{count} {severity}" for severity, count in document["counts"].items() if count]
    lines = [", ".join(told) if told else "no difference"]
    for difference in document["differences"]:
        ours, theirs = difference["ours"], difference["theirs"]
        lines.append(f"{difference['severity']}: {difference['field']}: {_side(ours)} against {_side(theirs)}")
        lines += textwrap.wrap(difference["consequence"], _WIDTH - 4, initial_indent="    ", subsequent_indent="    ")
    lines += ["cannot tell:", *(f"    {what}" for what in document["cannot_tell"])]
    return page(lines)


def _side(value: object) -> str:
    return "nothing" if value is None else str(value)
