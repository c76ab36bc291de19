# SPDX-License-Identifier: Apache-2.0
"""The corpus that is kept, and what a parser's inputs are read by."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"

Try = Callable[[random.Random], object]
"""Reads an input that it makes of the dice; False: it was refused without an error."""

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def kept(name: str) -> Any:
    """Return the documents that inputs of a parser are made of."""
    return json.loads((DATA / "fuzz" / "documents.json").read_text(encoding="utf-8"))[name]
