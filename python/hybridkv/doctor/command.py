# SPDX-License-Identifier: Apache-2.0
"""``hybridkv doctor``: the command."""

from __future__ import annotations

import argparse
import json

EXIT_FAILED = 1


def add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "doctor",
        help="versions, engines and formats of this host; what two hosts would take for a hit; a checklist",
        description="Print what a report of a fault should contain: versions of everything that is written down, CPU "
        "and GPU, installed engines (none is imported) and the formats that they are known to write.",
    )
    parser.add_argument(
        "--cache",
        metavar="FACTS",
        help="facts of a running cache (json.dump(hybridkv.doctor.cache_facts(cache), file)), for the checklist and to "
        "compare",
    )
    parser.add_argument("--readiness", action="store_true", help="answer the checklist too")
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("OURS", "THEIRS"),
        help="instead: what differs between two hosts, each written by doctor --json, and what it would come to; exit "
        "status 1 where there could be a false hit, a refusal or hits that are lost",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from hybridkv.doctor import compare, doctor, readiness
    from hybridkv.doctor.documents import read_document
    from hybridkv.doctor.report import comparison_text, host_text
    from hybridkv.doctor.severities import FALSE_HIT, LOST_HITS, REFUSED
    from hybridkv.errors import ArgumentError
    from hybridkv.printed import put

    if args.compare is not None:
        if args.cache is not None or args.readiness:
            raise ArgumentError("compare", "no --cache and no --readiness beside it", "one of them")
        ours, theirs = (read_document(path, path, "host") for path in args.compare)
        compared = compare(ours, theirs)
        put(json.dumps(compared) if args.json else comparison_text(compared))
        wrong = sum(compared["counts"][severity] for severity in (FALSE_HIT, REFUSED, LOST_HITS))
        return EXIT_FAILED if wrong else 0
    document = doctor()
    if args.cache is not None:
        document["cache"] = read_document("cache", args.cache, "cache")
    if args.cache is not None or args.readiness:
        document["readiness"] = readiness(document, document.get("cache"))
    put(json.dumps(document) if args.json else host_text(document))
    return 0
