"""Trying again: calls to services that are busy for a moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from whymatch import progress

T = TypeVar("T")
ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds


# How clients of services call what may pass: requests, httpx, openai and others have classes of their own.
TRANSIENT = {
    "APIConnectionError",
    "ConnectionError",
    "InternalServerError",
    "RateLimitError",
    "ServiceUnavailableError",
    "Timeout",
    "TimeoutError",
    "TransportError",
}


class ServiceError(RuntimeError):
    """A service that answered with an error, or with what is not an answer; trying again would not help."""


class BusyError(ConnectionError):
    """A service that could not answer now, and may answer later.

    Attributes:
        after: the number of seconds after which it asks to be called again, if it says so.
    """

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass by itself: a broken connection, a time-out, a service that is busy."""
    return bool({each.__name__ for each in type(error).__mro__} & TRANSIENT)


def with_retries(call: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """Call a function; if the connection fails or times out, wait and call it again, longer each time.

    A service that stays busy is a :class:`ServiceError` in the end, which nobody tries again. Waiting can be stopped by
    whoever watches the progress; see :mod:`whymatch.progress`.
    """
    wait = FIRST_WAIT
    for attempt in range(1, attempts + 1):
        try:
            return call()
        except Exception as error:
            if attempt == attempts and isinstance(error, BusyError):
                raise ServiceError(f"{error}, {attempts} times") from None
            if attempt == attempts or not is_transient(error):
                raise
            after = getattr(error, "after", None)
        # A little chance keeps many clients from coming back all at once.
        _sleep(min(LONGEST_WAIT, after) if after is not None else wait * random.uniform(0.8, 1.2))
        wait = min(LONGEST_WAIT, 2 * wait)
    raise AssertionError("unreachable")


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress.report(0.0, "waiting to try again")
        time.sleep(min(left, 0.1))
