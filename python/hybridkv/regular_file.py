# SPDX-License-Identifier: Apache-2.0
"""Opening a file that others may have put there: no pipe or device is waited for, and reading has an end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Open a regular file to read its bytes.

    Parameters
    ----------
    path : path-like
    follow : bool
        Whether the last part of the path may be a link.

    Returns
    -------
    binary file

    Raises
    ------
    OSError
        It cannot be opened; what is there is no regular file.
    ValueError
        No file can have that name.
    """
    # Without O_NONBLOCK a pipe that nobody writes into would be waited for without end.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return open(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most so many bytes; the rest as :func:`open_regular`.

    Raises
    ------
    OSError
        It has more.
    """
    with open_regular(path, follow=follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", os.fspath(path))
    return content
