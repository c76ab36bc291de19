# SPDX-License-Identifier: Apache-2.0
"""Texts and paths that are given: refused at the entry, by the name of the field, where nothing can be made of them."""

from __future__ import annotations

import os
from pathlib import Path

from hybridkv.errors import ArgumentError, HybridKVError, SpecError


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode a text: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encodable(field: str, text: str, error: type[HybridKVError] = SpecError) -> str:
    """Return a str that UTF-8 can encode, as it is.

    Parameters
    ----------
    field : str
        The name that an error tells.
    text : str
    error : type, optional
        What is raised.

    Raises
    ------
    SpecError, or ``error``
        It holds half of a surrogate pair.
    """
    if not is_encodable(text):
        raise error(field, "a str that UTF-8 can encode", ascii(text))
    return text


def name_of(field: str, value: object, error: type[HybridKVError] = ArgumentError) -> str:
    """Return a name: a str that is not empty and that UTF-8 can encode.

    Parameters
    ----------
    field : str
        The name that an error tells.
    value : object
    error : type, optional
        What is raised.

    Raises
    ------
    ArgumentError, or ``error``
        It is none.
    """
    if not isinstance(value, str) or not value:
        raise error(field, "a non-empty str", value)
    return encodable(field, value, error)


def path_text(field: str, value: object) -> str:
    """Return a path as text.

    Parameters
    ----------
    field : str
        The name that an error tells.
    value : object
        A str or path-like. Names of files that are no UTF-8 are what the system's calls make of them.

    Raises
    ------
    ArgumentError
        It is none, bytes, empty, or has a NUL or half of a surrogate pair that no name of a file has.
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        raise ArgumentError(field, "a path", type(value).__name__) from None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ArgumentError(field, "a path of text", ascii(text))
    try:
        os.fsencode(text)
    except UnicodeEncodeError as why:
        raise ArgumentError(field, "a path that a file can have", ascii(text)) from why
    return text


def path_of(field: str, value: object) -> Path:
    """Return a path, checked as :func:`path_text` does."""
    return Path(path_text(field, value))
