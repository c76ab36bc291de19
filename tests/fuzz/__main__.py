# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz`` from the root of the repository: a million inputs for each parser, or ten minutes."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import traceback
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.campaign import Told, run
from fuzz.parsers import Parser, parsers

MEMORY = 1 << 30  # bytes that a parser may map beyond what is mapped before it begins


def main(argv: list[str]) -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    arguments.add_argument("names", nargs="*", help="parsers (default: all)")
    arguments.add_argument("--inputs", type=int, default=10**6, help="of each parser at most (1,000,000)")
    arguments.add_argument("--seconds", type=float, default=600, help="of processor time, of each parser at most (600)")
    arguments.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments.add_argument("--at", type=int, help="this input alone, to repeat it")
    arguments.add_argument("--weighted", action="store_true", help="fewer of slow parsers, as the short form")
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args(argv)
    table = {parser.name: parser for parser in parsers()}
    if unknown := [name for name in given.names if name not in table]:
        arguments.error(f"no parser {', '.join(unknown)}; there are {', '.join(table)}")
    limit = _mapped() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    failed = False
    for name in given.names or table:
        told = _one(table[name], given)
        if told is None:
            continue
        failed = failed or bool(told.failures)
        print(json.dumps(vars(told)) if given.json else told.line(), flush=True)
        for failure in told.failures:
            print(failure, file=sys.stderr)
    return 1 if failed else 0


def _one(parser: Parser, given: argparse.Namespace) -> Told | None:
    if parser.needs and find_spec(parser.needs) is None:
        print(f"{parser.name}: left out, {parser.needs} is not installed", file=sys.stderr)
        return None
    inputs = max(1, given.inputs * parser.weight // 100) if given.weighted else given.inputs
    try:
        return run(parser, inputs, given.seconds, given.seed, only=given.at)
    except Exception:
        told = Told(parser.name, 0, 0, 0.0, 0.0, 0)
        told.failures.append(traceback.format_exc())
        return told


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
