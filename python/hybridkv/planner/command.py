# SPDX-License-Identifier: Apache-2.0
"""``hybridkv plan``: the command."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridkv.planner.load import Fleet, Load, TraceFacts
    from hybridkv.planner.places import Place

_DEFAULT_RATE = "20000"


def add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "plan",
        help="what a model's cache costs, what fits, what to keep where, and whether a disk pays",
        description="Plan a cache from a config.json, memory, and a load: bytes by state, the homogeneous design "
        "beside the hybrid one, units, policies, admission, disk, hot and cold, a fleet, and what to do. All of it "
        "follows from the numbers given here; nothing is measured. Sizes are as 80GiB or 3GB, tokens as 131072 or "
        "128Ki.",
    )
    parser.add_argument("config", metavar="CONFIG", help="a config.json, or the folder that holds it")
    parser.add_argument("--memory", required=True, metavar="BYTES", help="of one host, for pages")
    parser.add_argument("--unit-tokens", metavar="N", help="tokens of a key (default: chosen)")
    parser.add_argument(
        "--dtype", default="fp8", metavar="DTYPE", help="fp8 (default: published rows), bfloat16, float32"
    )
    parser.add_argument(
        "--rows",
        action="append",
        metavar="GROUP=FORMAT",
        help="rows of a group in a named format, as indexer=indexer_mxfp4",
    )
    parser.add_argument("--rate", default=_DEFAULT_RATE, metavar="N", help="prompt tokens a second of one host (20000)")
    _add_load(parser)
    _add_places(parser)
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument("--hosts", metavar="N", help="hosts that share the load (default: 1)")
    fleet.add_argument("--prefixes", metavar="M", help="prefixes that all hosts keep (default: as many as fit)")
    fleet.add_argument(
        "--unrouted", action="store_true", help="requests of one prefix go to any host, so that each keeps all"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load, of one host")
    load.add_argument("--context", metavar="TOKENS", help="longest request, prompt and answer (or --trace)")
    load.add_argument(
        "--concurrency", metavar="N", help="requests at a time (default: 1, or those in flight in the trace)"
    )
    load.add_argument("--step", metavar="TOKENS", help="most tokens of a request in flight (default: 8192)")
    load.add_argument("--prefix", metavar="TOKENS", help="length of a kept prefix (default: the context)")
    load.add_argument("--ends", metavar="N", help="ends of a prefix that keep states (default: 2)")
    load.add_argument("--reused", metavar="SHARE", help="part of prompt tokens that was seen before (default: 0.5)")
    load.add_argument("--elsewhere", metavar="SHARE", help="part of hits that end where nothing ended (default: 0.1)")
    load.add_argument("--requests-per-second", metavar="N", help="arrivals (default: not known)")
    load.add_argument("--trace", metavar="PATH", help="count all of these in a trace of JSON lines instead")
    load.add_argument(
        "--trace-unit", choices=("ms", "s"), default="ms", help="of its timestamps (default: ms, Mooncake's)"
    )
    load.add_argument("--answer-rate", default="50", metavar="N", help="answer tokens a second of one request (50)")
    load.add_argument("--block-tokens", metavar="N", help="tokens of an id of the trace (default: from the lengths)")


def _add_places(parser: argparse.ArgumentParser) -> None:
    places = parser.add_argument_group("places below the pools, of one host")
    for name, what, read in (("host", "host memory", "50GB"), ("disk", "disk", "3GB")):
        places.add_argument(f"--{name}-capacity", metavar="BYTES", help=f"of the {what} (default: none is used)")
        places.add_argument(f"--{name}-read", metavar="BYTES", help=f"a second (default: {read})")
        places.add_argument(f"--{name}-write", metavar="BYTES", help="a second (default: not known)")
        places.add_argument(f"--{name}-latency", metavar="TIME", help="until the first byte, as 100us (default: 0)")


def _run(args: argparse.Namespace) -> int:
    from hybridkv.planner.plan import plan
    from hybridkv.planner.quantities import parse_count, parse_number
    from hybridkv.planner.text import as_text
    from hybridkv.printed import put

    rate = parse_number("rate", args.rate)
    memory = parse_count("memory", args.memory, of_bytes=True)
    unit = None if args.unit_tokens is None else parse_count("unit_tokens", args.unit_tokens)
    fleet = _fleet(args)
    load, facts = _load(args, rate)
    answer = plan(
        args.config,
        memory,
        load,
        places=_places(args),
        tokens_per_second=rate,
        fleet=fleet,
        unit_tokens=unit,
        dtype=args.dtype,
        rows=_rows(args.rows),
        trace=facts,
    )
    put(json.dumps(answer.to_dict()) if args.json else as_text(answer))
    return 0


def _fleet(args: argparse.Namespace) -> Fleet:
    from hybridkv.planner.load import Fleet
    from hybridkv.planner.quantities import parse_count

    hosts = 1 if args.hosts is None else parse_count("hosts", args.hosts)
    prefixes = None if args.prefixes is None else parse_count("prefixes", args.prefixes)
    return Fleet(hosts, prefixes, routed=not args.unrouted)


def _load(args: argparse.Namespace, rate: float) -> tuple[Load, TraceFacts | None]:
    """Read what was said of the load; where a trace was given, what was said besides stands over what it counts."""
    from dataclasses import replace

    from hybridkv.errors import ArgumentError
    from hybridkv.planner.load import Load, load_of_trace
    from hybridkv.planner.quantities import parse_count, parse_number
    from hybridkv.replay.trace import load_trace

    said: dict[str, Any] = {}
    counts = {
        "context": "context_tokens",
        "concurrency": "concurrency",
        "step": "step_tokens",
        "prefix": "prefix_tokens",
    }
    for option, field in counts.items():
        if getattr(args, option) is not None:
            said[field] = parse_count(option, getattr(args, option))
    if args.ends is not None:
        said["ends"] = 0 if args.ends.strip() == "0" else parse_count("ends", args.ends)
    for option, field in (("reused", "reused_share"), ("elsewhere", "elsewhere_share")):
        if getattr(args, option) is not None:
            said[field] = _share(option, getattr(args, option))
    if args.requests_per_second is not None:
        said["requests_per_second"] = parse_number("requests_per_second", args.requests_per_second)
    if args.trace is None:
        if "context_tokens" not in said:
            raise ArgumentError("context", "a number of tokens, or --trace", None)
        return Load(**said), None
    block = None if args.block_tokens is None else parse_count("block_tokens", args.block_tokens)
    trace = load_trace(args.trace, block_tokens=block)
    counted, facts = load_of_trace(
        trace,
        tick_s=0.001 if args.trace_unit == "ms" else 1.0,
        tokens_per_second=rate,
        answer_tokens_per_second=parse_number("answer_rate", args.answer_rate),
    )
    context = said.get("context_tokens", counted.context_tokens)
    if context < facts.longest_tokens:
        raise ArgumentError("context", f"at least {facts.longest_tokens}, the longest request of the trace", context)
    return replace(counted, **said), facts


def _share(option: str, text: str) -> float:
    from hybridkv.errors import ArgumentError
    from hybridkv.planner.load import share

    try:
        return share(option, float(text))
    except ArgumentError:
        raise
    except ValueError:
        raise ArgumentError(option, "a share, 0 to 1", text) from None


def _places(args: argparse.Namespace) -> list[Place]:
    from hybridkv.cost import Bandwidth
    from hybridkv.errors import ArgumentError
    from hybridkv.planner.places import DISK_UNIT_BYTES, Place
    from hybridkv.planner.quantities import parse_count, parse_seconds

    found = []
    for name, speed, unit in (("host", "50GB", 1), ("disk", "3GB", DISK_UNIT_BYTES)):
        capacity, read, write, latency = (
            getattr(args, f"{name}_{what}") for what in ("capacity", "read", "write", "latency")
        )
        if capacity is None:
            if (read, write, latency) != (None, None, None):
                raise ArgumentError(f"{name}_capacity", f"bytes, where something else is said of the {name}", None)
            continue
        bandwidth = Bandwidth(
            parse_count(f"{name}_read", read or speed, of_bytes=True),
            0.0 if latency is None else parse_seconds(f"{name}_latency", latency),
        )
        written = None if write is None else parse_count(f"{name}_write", write, of_bytes=True)
        size = parse_count(f"{name}_capacity", capacity, of_bytes=True)
        found.append(Place(name, size, bandwidth, written, unit))
    return found


def _rows(given: list[str] | None) -> dict[str, str]:
    from hybridkv.errors import ArgumentError

    rows = {}
    for text in given or ():
        name, equals, entry = text.partition("=")
        if not (name and equals and entry):
            raise ArgumentError("rows", "GROUP=FORMAT", text)
        rows[name] = entry
    return rows
