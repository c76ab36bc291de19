# SPDX-License-Identifier: Apache-2.0
"""Errors: one class per thing a caller can act on, each with its context as attributes.

A false hit is never an error: it is a verdict with a reason.
"""

from __future__ import annotations


class HybridKVError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    field : str
        The argument or the field of a spec that was refused.
    expected : object
        What was expected there.
    got : object
        What came.
    **context : object
        Further facts, kept as attributes.

    Notes
    -----
    Where one of these is raised, nothing has changed.
    """

    def __init__(self, field: str = "", expected: object = "", got: object = "", **context: object) -> None:
        self.field = field
        self.expected = expected
        self.got = got
        self.context = dict(context)
        for name, value in context.items():
            setattr(self, name, value)
        extra = "".join(f"; {name}={value!r}" for name, value in context.items())
        super().__init__(f"{field}: expected {expected}, got {got}{extra}")


class SpecError(HybridKVError):
    """A field of a :class:`~hybridkv.CacheSpec` or of one of its groups is not legal."""


class UnsupportedModel(HybridKVError):
    """A model configuration that is not known; nothing is guessed from shapes."""


class ArgumentError(HybridKVError, ValueError):
    """An argument of a call is not legal."""


class NotAdmitted(HybridKVError):
    """Admission refused a request; ``retry`` is False where it can never fit."""


class OutOfPages(HybridKVError):
    """A pool has not enough free pages; nothing was taken.

    Attributes
    ----------
    pool : str
        Name of the group, or "blocks" where no descriptor is free.
    needed, free : int
        Pages asked for and pages there.
    """

    pool: str
    needed: int
    free: int


class Busy(HybridKVError):
    """Refused while leases, fills or tickets live."""


class KernelContract(HybridKVError):
    """A kernel refused its inputs."""


class TierError(HybridKVError):
    """A tier could not do what was asked."""


class RestoreRefused(HybridKVError):
    """An image does not belong where it should be restored."""


class LeaseExpired(HybridKVError):
    """The lease was released, failed or cancelled before."""


class FillClosed(HybridKVError):
    """The fill was aborted or published before."""


class Closed(HybridKVError):
    """The cache or the ticket was closed before."""
