# SPDX-License-Identifier: Apache-2.0
"""Texts of others on a terminal or in a log: what they hold is shown, and does nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""Return a text in one line, what is no plain character as an escape.

    Parameters
    ----------
    text : str
        Any, such as a name from a file of others: line ends, control and format characters (those that change the
        direction of text among them) and halves of surrogate pairs become escapes of Python.

    Examples
    --------
    >>> print(printable("a\x1b[2J\nb \ud800"))
    a\x1b[2J\nb \ud800
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def page(lines: Iterable[str]) -> str:
    """Return lines as one text, each as :func:`printable` shows it: a value with a line end makes no further line."""
    return "\n".join(map(printable, lines))


def put(text: str) -> None:
    """Print a text, what the encoding of stdout does not have as an escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def tell(text: str) -> None:
    """Print a line to stderr, as :func:`printable` shows it."""
    print(printable(text), file=sys.stderr, flush=True)
