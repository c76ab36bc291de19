# SPDX-License-Identifier: Apache-2.0
"""``hybridkv compare``: the command."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "compare",
        help="a homogeneous and a hybrid model on one trace: states, hits, duties, failures, bytes",
        description="Replay a trace on a homogeneous and on a hybrid model in the same memory and put side by side "
        "what each keeps, what a hit means, what the allocator does, how it fails and what it costs.",
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="the hybrid model, beside its own homogeneous design; or the homogeneous and the hybrid one: "
        "deepseek-v4-flash, gemma-3-4b, or the path of a config.json",
    )
    parser.add_argument("--trace", type=Path, required=True, metavar="TRACE", help="a trace file with ids of blocks")
    parser.add_argument(
        "--memory", metavar="SIZE", help="for pages, of each (default: 1/4 of what the trace fills of the hybrid one)"
    )
    parser.add_argument(
        "--policy",
        default="ends",
        metavar="P",
        help="boundaries that keep states: ends (default), all, or every:TOKENS",
    )
    parser.add_argument("--unit-tokens", type=int, default=256, metavar="N", help="tokens of a key (default: 256)")
    parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens of an id (default: from the lengths)")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N requests of the trace")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object there; -: print it, and no table")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from hybridkv.doctor.host import version_of
    from hybridkv.errors import ArgumentError
    from hybridkv.planner.quantities import parse_count
    from hybridkv.printed import put
    from hybridkv.replay import versus_text
    from hybridkv.replay.command import json_target, parse_policy, write_json
    from hybridkv.replay.shapes import find_shape
    from hybridkv.replay.versus import compare

    if len(args.model) > 2:
        raise ArgumentError("model", "one model, or the homogeneous and the hybrid one", f"{len(args.model)} models")
    shapes = [find_shape(name) for name in args.model]
    target = json_target(args.json, [args.trace, *map(Path, args.model)])
    pair = compare(
        args.trace,
        shapes[-1],
        shapes[0] if len(shapes) == 2 else None,
        memory_bytes=None if args.memory is None else parse_count("memory", args.memory, of_bytes=True),
        policy=parse_policy(args.policy),
        unit_tokens=args.unit_tokens,
        requests=args.requests,
        block_tokens=args.block_tokens,
        shown=True,
    )
    if target is not None:
        write_json(versus_text.as_json(pair, version=version_of("hybridkv")), target)
    if args.json != "-":
        put(versus_text.as_markdown(pair) if args.markdown else versus_text.as_text(pair))
    return 0
