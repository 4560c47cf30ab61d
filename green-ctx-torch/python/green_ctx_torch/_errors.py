"""The exceptions of this module.

Most classes also derive from a built-in class that Python programs expect, `RuntimeError` or `ValueError`. The classes
are written in Python, because an extension module that supports several versions of Python cannot create a class with
two bases. The native code looks the classes up by name.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ClosedError",
    "DriverError",
    "Error",
    "InvalidRequestError",
    "InvalidStateError",
    "InvalidValueError",
    "NoDriverError",
    "UnavailableError",
    "UnsupportedError",
]


class Error(Exception):
    """The base class of this module's exceptions."""

    kind: str = ""
    """The reason as one word: `no_driver`, `unsupported`, `invalid_request`, `unavailable`, `driver` or
    `closed`."""

    requested: list[str] | None = None
    """The requested shares as text, such as "16" or "32..", if too few SMs are available for them."""

    free: int | None = None
    """The number of free SMs, if too few are available for the request."""

    holders: Sequence[tuple[str, int]] = ()
    """The partitions that hold SMs that the request needs: pairs of a name and a number of SMs."""


class NoDriverError(Error, RuntimeError):
    """There is no CUDA driver, or no device."""

    kind = "no_driver"


class UnsupportedError(Error, RuntimeError):
    """The driver or torch is too old for the call, or lacks a feature that the call needs."""

    kind = "unsupported"


class InvalidRequestError(Error):
    """The call is invalid, even if the whole device is free. The call can succeed with other arguments or in another
    state."""

    kind = "invalid_request"


class InvalidValueError(InvalidRequestError, ValueError):
    """An argument is wrong, or requests more than the device has."""


class InvalidStateError(InvalidRequestError, RuntimeError):
    """The object, the stream or the thread is in a state that does not allow the call."""


class UnavailableError(Error, RuntimeError):
    """The request is valid but cannot be fulfilled now, because another object holds a resource that the request
    needs."""

    kind = "unavailable"


class DriverError(Error, RuntimeError):
    """A function of the driver or of torch failed, the driver does not work, or the process was forked after the driver
    was loaded."""

    kind = "driver"


class ClosedError(Error, RuntimeError):
    """The partition, plan, plan set or context is closed."""

    kind = "closed"


for _class in list(vars().values()):
    if isinstance(_class, type):
        # Programs import the classes from this module, and pickles store this name.
        _class.__module__ = "green_ctx_torch"
del _class
