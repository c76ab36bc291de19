# SPDX-License-Identifier: Apache-2.0
"""Writers as processes: forked, so that none of them loads anything, and ended by signals or by their own end."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

LIMIT_SECONDS = 120.0  # for a life that ends by itself


class Child:
    """A forked process that waits for `go` and then runs a function."""

    def __init__(self, body: Callable[[], None]) -> None:
        started, self._start = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._start)
            os.read(started, 1)
            code = 1
            try:
                body()
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        os.close(started)
        self.status: int | None = None

    def go(self) -> None:
        """Let it run."""
        os.write(self._start, b"g")
        os.close(self._start)

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = LIMIT_SECONDS) -> int | None:
        """Return its exit status, negative for a signal; None if it hung and was killed."""
        until = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                self.kill()
                os.waitpid(self.pid, 0)
                return None
            else:
                time.sleep(0.002)
        return self.status


def run(body: Callable[[], None], seconds: float = LIMIT_SECONDS) -> int | None:
    """Run a function in a process of its own; return as `Child.wait`."""
    child = Child(body)
    child.go()
    return child.wait(seconds)


class Strace:
    """strace on a child that has not started yet, and on every thread that it will have."""

    def __init__(self, child: Child, log: Path, *options: str, threads: bool = True) -> None:
        follow = ["-f"] if threads else []
        command = ["strace", *follow, "-p", str(child.pid), "-o", str(log), *options]
        self._log = log
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stderr, selectors.EVENT_READ)
            if not selector.select(30) or b"attached" not in os.read(self._process.stderr.fileno(), 4096):
                self._process.kill()
                raise RuntimeError("strace could not attach")

    def lines(self) -> list[str]:
        """Return what it wrote, once the child is gone."""
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process.wait(30)
        return self._log.read_text(errors="replace").splitlines()


@lru_cache
def cannot_trace() -> str:
    """Say why strace cannot follow processes here; empty where it can."""
    if shutil.which("strace") is None:
        return "strace is absent"
    with tempfile.TemporaryDirectory() as folder:
        child = Child(lambda: None)
        try:
            trace = Strace(child, Path(folder) / "trace")
        except RuntimeError:
            return "strace may not attach to processes"
        finally:
            child.go()
            child.wait()
        trace.lines()
    return ""


def injected(lines: list[str]) -> int:
    """Return how many calls were tampered with."""
    return sum(bool(re.search(r"\(INJECTED\)", line)) for line in lines)
