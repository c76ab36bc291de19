# SPDX-License-Identifier: Apache-2.0
"""``hybridkv replay``: the command."""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridkv.replay.grid import Grid, TraceRuns
    from hybridkv.replay.pools import Windows

_UNIT = re.compile(r"[0-9.\s]+")


def add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of the command and name what runs.

    Parameters
    ----------
    commands : argparse subparsers
        Of the command line.
    """
    parser = commands.add_parser(
        "replay",
        help="your traces through the real manager: policies, sizes and tiers side by side",
        description="Replay request traces through the cache itself, without a model: Mooncake, Qwen-Bailian and agent "
        "traces, one JSON object a line. Options with commas give one run for each combination. Ctrl-C ends it and "
        "keeps what was replayed; so does a line of a trace that is broken.",
    )
    parser.add_argument("trace", nargs="+", type=Path, metavar="TRACE", help="a trace file")
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="deepseek-v4-flash (default), gemma-3-4b, or the path of a config.json; may be repeated",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE[,SIZE...]",
        help="for pages, as 8,16,64GiB (default: 1/16, 1/4 and all of what the trace would fill)",
    )
    parser.add_argument(
        "--policy",
        default="ends",
        metavar="P[,P...]",
        help="boundaries that keep states: ends (of prompt and answer, default), all, or every:TOKENS",
    )
    parser.add_argument(
        "--eviction",
        default="usability",
        metavar="E[,E...]",
        help="usability (default), lru, none: of the core; tree: hybridkv.policy, in Python",
    )
    parser.add_argument(
        "--tier",
        action="append",
        metavar="none|memory:SIZE|DIR:SIZE",
        help="a tier below the pools; may be repeated. Host memory takes 1/256 of SIZE, a directory all of it",
    )
    parser.add_argument(
        "--answers",
        choices=("ids", "none"),
        default="ids",
        help="store answers that the ids of the next turn name (default), or prompts only",
    )
    parser.add_argument("--unit-tokens", type=int, default=256, metavar="N", help="tokens of a key (default: 256)")
    parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens of an id (default: from the lengths)")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N requests of each trace")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object there; -: print it, and no table")
    parser.add_argument("--pictures", metavar="DIR", help="draw three pictures for each trace there (needs matplotlib)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from hybridkv.doctor.host import version_of
    from hybridkv.printed import put, tell
    from hybridkv.replay import grid_report
    from hybridkv.replay.grid import replay_grid

    began = time.perf_counter()
    grid = grid_of(args)
    target = json_target(args.json, args.trace)
    pictures = picture_folder(args.pictures)
    found = replay_grid(args.trace, grid, shown=True)
    if not found:
        tell("hybridkv replay: interrupted before the first request")
        return 1
    seconds = time.perf_counter() - began
    if target is not None:
        document = grid_report.as_json(
            found, grid, paths=len(args.trace), version=version_of("hybridkv"), seconds=seconds
        )
        write_json(document, target)
    if args.json != "-":
        put(grid_report.as_text(found, grid, paths=len(args.trace), seconds=seconds))
    if pictures is not None:
        _draw(found, pictures)
    for line in grid_report.shortcomings(found, len(args.trace)):
        tell(f"hybridkv replay: partial results: {line}")
    return _status(found, len(args.trace))


def _status(found: list[TraceRuns], paths: int) -> int:
    """0; 2 where a trace was refused from some line on, 1 where it was interrupted."""
    if any(one.trace.broken is not None for one in found):
        return 2
    return int(len(found) < paths or any(one.interrupted for one in found))


def grid_of(args: argparse.Namespace) -> Grid:
    """Read what to replay from the arguments; raises ArgumentError, naming the option."""
    from hybridkv.replay.grid import Grid
    from hybridkv.replay.places import Place
    from hybridkv.replay.shapes import find_shape

    return Grid(
        shapes=tuple(find_shape(name) for name in args.model or ("deepseek-v4-flash",)),
        memory=sizes("memory", args.memory),
        policies=tuple(dict.fromkeys(parse_policy(part) for part in args.policy.split(","))),
        evictions=tuple(dict.fromkeys(part.strip() for part in args.eviction.split(","))),
        places=tuple(dict.fromkeys(Place.parse(part) for part in args.tier or ("none",))),
        unit_tokens=args.unit_tokens,
        answers=args.answers == "ids",
        requests=args.requests,
        block_tokens=args.block_tokens,
    )


def parse_policy(text: str) -> Windows:
    """Read ``ends``, ``all`` or ``every:TOKENS``; raises ArgumentError."""
    from hybridkv.errors import ArgumentError
    from hybridkv.planner.quantities import parse_count
    from hybridkv.replay.pools import Windows

    name, colon, stride = text.strip().partition(":")
    if name in ("ends", "all") and not colon:
        return Windows(name)
    if name == "every" and colon:
        return Windows("every", parse_count("policy", stride))
    raise ArgumentError("policy", "ends, all or every:TOKENS, with commas between them", text)


def sizes(field: str, text: str | None) -> tuple[int, ...] | None:
    """Read sizes with commas between them; the unit of the last holds for those that have none."""
    from hybridkv.planner.quantities import parse_count

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    number = _UNIT.match(parts[-1])
    unit = parts[-1][number.end() :] if number else ""
    whole = [part + unit if _UNIT.fullmatch(part) else part for part in parts]
    return tuple(dict.fromkeys(parse_count(field, part, of_bytes=True) for part in whole))


def json_target(text: str | None, inputs: list[Path]) -> Path | None:
    """Check where JSON is to go before anything runs: "-" is stdout, and no input is overwritten."""
    from hybridkv.errors import ArgumentError
    from hybridkv.texts import path_of

    if text is None:
        return None
    target = path_of("json", text)
    for path in inputs:
        if target.exists() and path.exists() and target.samefile(path):
            raise ArgumentError("json", "a file that is no input", str(target))
    if text != "-" and not target.parent.is_dir():
        raise ArgumentError("json", "a file in a folder that is there", str(target))
    return target


def write_json(document: object, target: Path) -> None:
    """Write one JSON object, to stdout where the target is "-"."""
    from hybridkv.printed import put

    if str(target) == "-":
        put(json.dumps(document))
    else:
        target.write_text(json.dumps(document) + "\n", encoding="utf-8")


def picture_folder(text: str | None) -> Path | None:
    """Check that pictures can be drawn before anything runs, and make their folder."""
    from hybridkv.errors import ArgumentError
    from hybridkv.extras import PICTURE, absent
    from hybridkv.texts import path_of

    if text is None:
        return None
    lacking = absent(PICTURE)
    if lacking is not None:
        raise ArgumentError("pictures", "matplotlib", lacking)
    folder = path_of("pictures", text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError("pictures", "a folder", f"{folder}: {error.strerror}") from error
    return folder


def _draw(found: list[TraceRuns], folder: Path) -> None:
    from hybridkv.printed import tell
    from hybridkv.replay.pictures import draw_trace

    for one in found:
        for path in draw_trace(one, folder):
            tell(f"drawn: {path}")
