# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command is one function that adds its parser and names what runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybridkv.doctor.command import add_doctor
from hybridkv.doctor.host import version_of
from hybridkv.errors import ArgumentError, HybridKVError
from hybridkv.explain.command import add_explain
from hybridkv.metrics.command import add_metrics
from hybridkv.planner.command import add_plan
from hybridkv.printed import printable, put
from hybridkv.probe.command import add_probe
from hybridkv.replay.command import add_replay
from hybridkv.replay.compare_command import add_compare
from hybridkv.texts import path_of

if TYPE_CHECKING:
    from hybridkv.replay.runs import Options

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; default: those of the process.

    Returns
    -------
    int
        0; 2 where the arguments or a file were refused; 1 where something was found wrong, or the output could not be
        written. The reason is on stderr, except where the reader of the output went away.
    """
    name = "hybridkv"
    try:
        try:
            args = build_parser().parse_args(argv)
            name = f"hybridkv {args.command}"
            with _escaping():
                code = int(args.run(args))
        finally:  # here, where a failure can be told, and not at exit; --help leaves by an exception too
            if sys.stdout is not None:
                sys.stdout.flush()
    except HybridKVError as error:
        return _leave(EXIT_REFUSED, f"{name}: {error}")
    except BrokenPipeError:
        return _leave(EXIT_FAILED, None, lost_output=True)
    except OSError as error:
        return _leave(EXIT_FAILED, f"{name}: {error}", lost_output=True)
    return code


@contextlib.contextmanager
def _escaping() -> Iterator[None]:
    """Print as escapes what stdout cannot encode: names and contents of files may hold half a surrogate pair."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):  # none, or one that an application put there
        yield
        return
    errors = stdout.errors
    stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # it flushes; whoever prints is told, and main flushes again
            stdout.reconfigure(errors=errors)


def _leave(code: int, reason: str | None, *, lost_output: bool = False) -> int:
    """Tell why, where that is possible, and see to it that the flush at exit does not fail again."""
    if reason is not None:
        with contextlib.suppress(OSError):
            print(printable(reason), file=sys.stderr, flush=True)
    if lost_output and sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):  # a stdout that is no file has no number
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def build_parser() -> argparse.ArgumentParser:
    """Make the parser with all commands.

    Returns
    -------
    argparse.ArgumentParser
        The parser; ``run`` of its result is the command.
    """
    parser = argparse.ArgumentParser(
        prog="hybridkv", description="Prefix reuse for hybrid-attention models: decided, explained, counted."
    )
    parser.add_argument("--version", action="version", version=f"hybridkv {version_of('hybridkv')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_demo(commands)
    add_plan(commands)
    add_replay(commands)
    add_compare(commands)
    add_explain(commands)
    _add_inspect(commands)
    _add_verify(commands)
    add_probe(commands)
    add_metrics(commands)
    add_doctor(commands)
    return parser


_Commands = argparse._SubParsersAction


def _add_demo(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo",
        help="what a hash-hit rule does to a real model's text, and to the traces of the clone",
        description="Part models: tiny DeepSeek-V4 and Llama models answer conversations without reuse, under the "
        "hash-hit rule and under hybridkv; every answer is compared with recomputation (needs torch and transformers). "
        "Part traces: public request traces through the homogeneous rule and the hybrid manager (needs a clone, or "
        "--trace).",
    )
    parser.add_argument(
        "--part",
        choices=("all", "models", "traces"),
        default="all",
        help="default: all that can run here, with a word on what cannot",
    )
    parser.add_argument(
        "--faults",
        action="store_true",
        help="instead of these parts: break one state of DeepSeek-V4 at a time and show which check refuses it "
        "(needs a clone)",
    )
    parser.add_argument(
        "--disk",
        nargs="?",
        const="",
        metavar="DIR",
        help="instead of these parts: hold conversations over a store on disk, kill the process, resume them in "
        "another and compare with computing from scratch (DIR: where the stores stay; default: a temporary folder)",
    )
    parser.add_argument(
        "--rollout",
        action="store_true",
        help="instead of these parts: switch reuse on by steps over DeepSeek-V4, break its windows on the way, and "
        "show what a canary sees and what backs off",
    )
    parser.add_argument(
        "--picture",
        metavar="PATH|none",
        help="where to draw the usable boundaries of one conversation (default: hybridkv-boundaries.png, in build/ "
        "where there is one; with --json only where a path is given)",
    )
    traces = parser.add_argument_group("traces")
    traces.add_argument(
        "--trace",
        action="append",
        type=Path,
        metavar="PATH",
        help="a trace file instead of those in tests/data",
    )
    _add_replay_options(traces)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> int:
    from hybridkv.demo import parts

    began = time.perf_counter()
    options = _replay_options(args)  # refused before anything runs
    for path in args.trace or ():
        if not path.is_file():
            raise ArgumentError("trace", "a file", f"{path}: No such file")
    run: dict[str, Callable[[], parts.Part]] = {
        "models": lambda: parts.models_part(_picture(args), shown=not args.json),
        "traces": lambda: parts.traces_part(args.trace, options, version=version_of("hybridkv"), shown=not args.json),
        "faults": parts.faults_part,
        "disk": lambda: parts.disk_part(path_of("disk", args.disk) if args.disk else None, shown=not args.json),
        "rollout": lambda: parts.rollout_part(shown=not args.json),
    }
    alone = [name for name in ("faults", "disk", "rollout") if getattr(args, name) not in (None, False)]
    names = alone or (("models", "traces") if args.part == "all" else (args.part,))
    found: list[parts.Part] = []
    for name in names:
        part = run[name]()
        if not args.json:
            skipped = [printable(f"No {what}: {why}") for what, why in part.skipped.items()]
            put("\n" * bool(found) + "\n\n".join(filter(None, [part.text, *skipped])))
        found.append(part)
    if args.json:
        seconds = time.perf_counter() - began
        put(json.dumps(parts.as_json(found, version=version_of("hybridkv"), seconds=seconds)))
    failures = "; ".join(part.failure for part in found if part.failure)
    if failures:
        return _leave(EXIT_FAILED, f"hybridkv demo: {failures}")
    if any(part.data for part in found):
        return EXIT_OK
    reasons = "; ".join(why for part in found for why in part.skipped.values())
    return _leave(EXIT_REFUSED, f"hybridkv demo: nothing could run: {reasons}")


def _picture(args: argparse.Namespace) -> Path | None:
    from hybridkv.demo.parts import default_picture

    if args.picture is None:
        return None if args.json else default_picture()
    return None if args.picture == "none" else path_of("picture", args.picture)


def _add_replay_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="deepseek-v4-flash, gemma-3-4b, or the path of a config.json; may be repeated (default: both)",
    )
    parser.add_argument(
        "--budget-gib",
        metavar="GIB[,GIB...]",
        help="memory for KV (default: 1/16, 1/4 and all of what the trace would fill)",
    )
    parser.add_argument(
        "--windows",
        default="ends",
        metavar="ends|all|TOKENS",
        help="boundaries that keep windows and checkpoints: prompt end and answer end (default), every one, "
        "or one each TOKENS",
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


def _replay_options(args: argparse.Namespace) -> Options:
    from hybridkv.replay.pools import Windows
    from hybridkv.replay.runs import Options
    from hybridkv.replay.shapes import BUILT_IN, find_shape

    return Options(
        shapes=tuple(find_shape(name) for name in args.model or BUILT_IN),
        budgets_gib=_budgets(args.budget_gib),
        windows=Windows.parse(args.windows),
        unit_tokens=args.unit_tokens,
        answers=args.answers == "ids",
        requests=args.requests,
        block_tokens=args.block_tokens,
    )


def _budgets(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        budgets = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ArgumentError("budget_gib", "numbers with commas between them", text) from error
    if not all(0 < budget < 2**20 for budget in budgets):
        raise ArgumentError("budget_gib", "above 0 and below 2**20", text)
    return budgets


def _add_inspect(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "inspect",
        help="what is in a disk tier's directory",
        description="Say what is in a disk tier's directory: files, regions, records, and what opening it would find. "
        "Reads headers, footers and envelopes, no payload, and changes nothing. The store must not be open.",
    )
    parser.add_argument("store", metavar="STORE", help="the directory")
    parser.add_argument("--records", action="store_true", help="list every record")
    parser.add_argument("--key", metavar="HEX", help="the records of this digest, with their parts")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_inspect)


def _run_inspect(args: argparse.Namespace) -> int:
    from hybridkv import store_report
    from hybridkv.tiers import Store

    key = None if args.key is None else store_report.digest(args.key)
    with Store(args.store) as store:
        document = store_report.inspect(store, records=args.records, key=key)
    put(json.dumps(document) if args.json else store_report.inspect_text(document))
    return EXIT_OK


def _add_verify(commands: _Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="whether every byte in a disk tier's directory is right",
        description="Read every byte of a disk tier's directory and compare it with its checksums. Lists what is "
        "damaged; exit status 1 where a header, a footer or a record that can be asked for is. The store must not be "
        "open.",
    )
    parser.add_argument("store", metavar="STORE", help="the directory")
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="remove damaged records, with what stands on them, so that they are not asked for again (default: change "
        "nothing)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run_verify)


def _run_verify(args: argparse.Namespace) -> int:
    from hybridkv import store_report
    from hybridkv.replay.progress import progress
    from hybridkv.tiers import Store

    with Store(args.store) as store, progress("verify", len(store), shown=not args.json) as step:
        document = store_report.verify(store, step)
    refused = False
    if args.quarantine:
        store_report.quarantine(args.store, document)
        refused = not store_report.quarantined(document)
    put(json.dumps(document) if args.json else store_report.verify_text(document))
    if refused:
        return _leave(EXIT_FAILED, "hybridkv verify: not every damaged record could be removed")
    return EXIT_OK if document["sound"] else EXIT_FAILED
