# SPDX-License-Identifier: Apache-2.0
"""All that needs a GPU, in one run of at most 8 minutes: same bytes as the CPU, graphs, hand-outs, speed.

::

    python tests/gpu/run_device_checks.py                  # builds a wheel of this tree and takes it
    python tests/gpu/run_device_checks.py --wheel X.whl    # takes this one
    python tests/gpu/run_device_checks.py --installed      # takes what this Python imports

Needs numpy and torch; for the build scikit-build-core, pybind11 and nvcc. Prints one table; exit 1 where a check
failed. Without a GPU it says so and exits with 0. ``--rehearse LIBRARY`` runs the comparisons on the stand-in driver
(``tests/cpp/fake_cuda``) instead: it checks this script and not a device.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SECONDS = 480.0
SANITIZED = "HYBRIDKV_CHECKS_SANITIZED"  # set in the process that compute-sanitizer watches


@dataclass
class Row:
    """One line of the table."""

    check: str
    result: str
    detail: str


@dataclass
class Run:
    """What checks share: where arrays go, how much time is left, and the table."""

    place: Any
    began: float = field(default_factory=time.monotonic)
    rows: list[Row] = field(default_factory=list)

    def left(self) -> float:
        return SECONDS - (time.monotonic() - self.began)

    def check(self, name: str, body: Callable[[], str], seconds: float) -> None:
        """Run one check, if the time that it may need is left."""
        if self.left() < seconds:
            self.rows.append(Row(name, "not run", f"{self.left():.0f} s left"))
            return
        began = time.monotonic()
        try:
            result, detail = "ok", body()
        except NotHere as why:
            result, detail = "not run", str(why)
        except Exception as error:  # a failed check must not keep the others from running
            result, detail = "FAILED", f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        self.rows.append(Row(name, result, detail))
        print(f"  {name}: {result}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def table(self) -> str:
        lines = ["| check | result | detail |", "|---|---|---|"]
        return "\n".join(lines + [f"| {row.check} | {row.result} | {row.detail} |" for row in self.rows])


class NotHere(Exception):
    """A check that cannot run on this machine."""


def why_no_device() -> str | None:
    """Say why no GPU can be used, without building anything."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "torch sees no CUDA device"


def take_package(arguments: argparse.Namespace, folder: Path) -> None:
    """Make ``import hybridkv`` give the package that is to be checked."""
    if arguments.installed:
        return
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    wheel = arguments.wheel
    if wheel is None:
        options = ["--no-index", "--no-deps", "--no-build-isolation", "-w", str(folder)]
        subprocess.run([*pip, "wheel", "-q", *options, str(ROOT)], check=True)
        wheel = next(folder.glob("hybridkv-*.whl"))
    site = folder / "site"
    subprocess.run([*pip, "install", "-q", "--no-index", "--no-deps", "--target", str(site), str(wheel)], check=True)
    sys.path.insert(0, str(site))
    told = [str(site), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, told))  # for the process under compute-sanitizer


def sanitizer_check(run: Run) -> Callable[[], str]:
    """Return a check that runs the comparisons once more under compute-sanitizer."""

    def body() -> str:
        program = shutil.which("compute-sanitizer")
        if program is None:
            raise NotHere("compute-sanitizer is not installed")
        told = {**os.environ, SANITIZED: "1"}
        done = []
        for tool in ("memcheck", "racecheck", "synccheck"):
            command = [program, "--tool", tool, "--error-exitcode", "7", sys.executable, __file__, "--installed"]
            try:
                ended = subprocess.run(
                    command, env=told, capture_output=True, text=True, timeout=max(run.left() - 20, 1)
                )
            except subprocess.TimeoutExpired:
                raise NotHere(f"no time for {tool}; before it: {', '.join(done) or 'none'}") from None
            if ended.returncode != 0:
                raise AssertionError(f"{tool}: exit {ended.returncode}: {(ended.stdout + ended.stderr)[-200:]}")
            done.append(tool)
        return ", ".join(done)

    return body


def main() -> int:
    """Run all checks and print the table."""
    parser = argparse.ArgumentParser(description="Everything of hybridkv that needs a GPU, in one table.")
    parser.add_argument("--wheel", type=Path, help="the wheel to check; default: one built of this tree")
    parser.add_argument("--installed", action="store_true", help="check what this Python imports")
    parser.add_argument("--rehearse", metavar="LIBRARY", help="the comparisons alone, on this stand-in driver")
    arguments = parser.parse_args()
    if arguments.rehearse:
        os.environ["HYBRIDKV_LIBCUDA"] = arguments.rehearse
        arguments.installed = True
    elif reason := why_no_device():
        print(f"not run: {reason}")
        return 0
    sys.path.insert(0, str(HERE))
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        take_package(arguments, Path(folder))
        return run_checks(arguments, began)


def run_checks(arguments: argparse.Namespace, began: float) -> int:
    """Run the checks of the package that has been taken."""
    import device_comparisons as comparisons
    import device_speed as speed
    import device_tiers as tiers
    from device_places import Rehearsal, TorchDevice

    run = Run(Rehearsal(arguments.rehearse) if arguments.rehearse else TorchDevice(), began)
    few = bool(arguments.rehearse) or SANITIZED in os.environ
    rounds = 12 if few else 300
    place = run.place
    run.check("driver", lambda: comparisons.driver(place), 0)
    run.check("gather, CPU against CUDA", lambda: comparisons.gather(place, rounds), 60)
    run.check("scatter, CPU against CUDA", lambda: comparisons.scatter(place, rounds), 60)
    run.check("fingerprint, CPU against CUDA", lambda: comparisons.fingerprint(place, rounds), 60)
    run.check("compress_tail, CPU against CUDA", lambda: comparisons.compress_tail(place, rounds), 60)
    run.check("ids out of range", lambda: comparisons.out_of_range(place), 10)
    run.check("device pools to a disk tier and back", lambda: tiers.round_trip(place), 30)
    run.check("host memory called a device's", lambda: tiers.refused(place), 10)
    if not few:
        run.check("offload beside a running stream", tiers.beside_a_stream, 30)
        run.check("offload beside a graph capture", tiers.beside_a_capture, 30)
        run.check("offload and restore, GB/s", tiers.speed, 30)
        import device_graphs
        import device_torch_ops

        run.check("ops of torch, CPU against CUDA", device_torch_ops.ops, 60)
        run.check("graph capture and replay", comparisons.graph, 30)
        run.check("replay of our tables, step by step", device_graphs.replayed, 30)
        run.check("events in a graph, the guard", device_graphs.events, 10)
        run.check("our tables in graph trees (reduce-overhead)", device_graphs.compiled, 60)
        run.check("compress_tail in a graph, step by step", comparisons.compress_graph, 30)
        run.check("hand-outs beside a writer", comparisons.writer, 60)
        for name, body in speed.measurements():
            run.check(name, body, 20)
        run.check("compute-sanitizer", sanitizer_check(run), 90)
    print(run.table())
    return int(any(row.result == "FAILED" for row in run.rows))


if __name__ == "__main__":
    sys.exit(main())
