"""The exceptions of this module.

Each is also of the built-in type that Python programs expect, `RuntimeError` or `ValueError`. They are written in
Python, since an extension module for several versions of Python cannot make classes with two bases. The native code
finds them by name.
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
    """The reason as one word: `no_driver`, `unsupported`, `invalid_request`, `unavailable`, `driver` or `closed`."""

    requested: list[str] | None = None
    """The requested shares as text, such as "16" or "32..", if there are too few SMs for them."""

    free: int | None = None
    """The number of free SMs, if there are too few for the request."""

    holders: Sequence[tuple[str, int]] = ()
    """The partitions that hold SMs that the request needs, by name and number of SMs."""


class NoDriverError(Error, RuntimeError):
    """There is no usable CUDA driver or no device. A child that was forked after the driver was loaded has none."""

    kind = "no_driver"


class UnsupportedError(Error, RuntimeError):
    """The driver or torch is too old, or lacks what the call needs."""

    kind = "unsupported"


class InvalidRequestError(Error):
    """The call is wrong, whatever the device is doing: a different call can succeed."""

    kind = "invalid_request"


class InvalidValueError(InvalidRequestError, ValueError):
    """An argument is wrong, or asks for more than the device has."""


class InvalidStateError(InvalidRequestError, RuntimeError):
    """The call is not possible in the state that the object, the stream or the thread is in."""


class UnavailableError(Error, RuntimeError):
    """The request is right and does not fit now, since something else holds what it needs."""

    kind = "unavailable"


class DriverError(Error, RuntimeError):
    """A call of the driver or of torch failed."""

    kind = "driver"


class ClosedError(Error, RuntimeError):
    """The partition, plan, set or context is closed."""

    kind = "closed"


for _class in list(vars().values()):
    if isinstance(_class, type):
        # The name that programs import, and that a pickle carries.
        _class.__module__ = "green_ctx_torch"
del _class
