# SPDX-License-Identifier: Apache-2.0
"""hybridkv next to vLLM and SGLang in one run: one trial of each in turn, ratios from each round.

A peer takes part where its interpreter is named: HYBRIDKV_VLLM_PYTHON, HYBRIDKV_SGLANG_PYTHON (and, for an
unpacked wheel, HYBRIDKV_SGLANG_PATH). hybridkv runs under this interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import trial

_HERE = Path(__file__).resolve().parent


class Program:
    """One look-up program that answers trials on request."""

    def __init__(self, name: str, python: str, args: argparse.Namespace, path: str = "") -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        if name != "hybridkv":
            environment["PYTHONPATH"] = path
        command = [python, "-W", "ignore", str(_HERE / f"{name}_lookup.py"), "--serve"]
        command += ["--budget-ms", str(args.budget_ms), "--core", str(args.core)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if args.verbose else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.name = name
        self.version = self._answer()["version"]

    def once(self, tokens: int, case: str) -> dict:
        """One trial."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{tokens} {case}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped; run with --verbose to see why")
        return json.loads(line)


def _programs(args: argparse.Namespace) -> list[Program]:
    programs = [Program("hybridkv", sys.executable, args)]
    for name in ("vllm", "sglang"):
        python = os.environ.get(f"HYBRIDKV_{name.upper()}_PYTHON")
        if python:
            programs.append(Program(name, python, args, os.environ.get(f"HYBRIDKV_{name.upper()}_PATH", "")))
    return programs


def _takes_part(name: str, case: str) -> bool:
    return case != "decode" or name != "sglang"  # its scheduler takes slots inside the engine


def _ratio(theirs: list[dict], ours: list[dict]) -> dict[str, float]:
    """Peer's time over hybridkv's, of each round's medians: above 1, hybridkv is faster."""
    ratios = sorted(t["median_us"] / o["median_us"] for t, o in zip(theirs, ours, strict=True))
    return {
        "median": round(statistics.median(ratios), 2),
        "lowest": round(ratios[0], 2),
        "highest": round(ratios[-1], 2),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 65536], help="cached tokens")
    parser.add_argument("--cases", nargs="+", choices=trial.CASES, default=list(trial.CASES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget-ms", type=float, default=30.0, help="length of a trial")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="core that all run on")
    parser.add_argument("--verbose", action="store_true", help="show what the programs print")
    args = parser.parse_args()
    programs = _programs(args)
    trials: dict[tuple[int, str, str], list[dict]] = {}
    for turn in range(args.rounds + 1):
        order = programs[turn % len(programs) :] + programs[: turn % len(programs)]
        for tokens in args.tokens:
            for case in args.cases:
                for program in order:
                    if not _takes_part(program.name, case):
                        continue
                    result = trial.clean_trial(lambda p=program, t=tokens, c=case: p.once(t, c))
                    if turn:  # the first turn builds and warms
                        trials.setdefault((tokens, case, program.name), []).append(result)
    report: dict = {"rounds": args.rounds, "versions": {p.name: p.version for p in programs}, "cases": []}
    for tokens in args.tokens:
        for case in args.cases:
            row: dict = {"tokens": tokens, "case": case}
            for program in (p for p in programs if _takes_part(p.name, case)):
                row[program.name] = trial.summary(trials[tokens, case, program.name])
            for program in (p for p in programs[1:] if _takes_part(p.name, case)):
                theirs, ours = trials[tokens, case, program.name], trials[tokens, case, "hybridkv"]
                row[f"{program.name}_over_hybridkv"] = _ratio(theirs, ours)
            report["cases"].append(row)
    for program in programs:
        program.close()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
