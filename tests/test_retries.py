"""Calls that are tried again."""

from __future__ import annotations

import time

import pytest

from whymatch import progress
from whymatch.encoders import retries
from whymatch.encoders.retries import ATTEMPTS, LONGEST_WAIT, BusyError, ServiceError, is_transient, with_retries


@pytest.fixture
def waits(monkeypatch):
    seconds = []
    monkeypatch.setattr(retries, "_sleep", seconds.append)
    return seconds


def failing(*errors):
    """A function that raises these errors, one in each call, and then returns."""
    remaining = list(errors)

    def call():
        if remaining:
            raise remaining.pop(0)
        return "answer"

    return call


def test_what_passes_by_itself_is_told_by_its_name():
    class RateLimitError(Exception):  # as a client of a service has it
        pass

    for error in (ConnectionResetError(), TimeoutError(), BusyError("busy"), RateLimitError()):
        assert is_transient(error)
    for error in (ServiceError("bad key"), KeyError("a"), OSError("disk")):
        assert not is_transient(error)


def test_waits_grow_unless_the_service_says_how_long(waits):
    errors = TimeoutError(), TimeoutError(), BusyError("busy", after=7), BusyError("busy", after=1e6)
    assert with_retries(failing(*errors)) == "answer"
    assert 0.4 <= waits[0] <= 0.6
    assert 0.8 <= waits[1] <= 1.2
    assert waits[2:] == [7, LONGEST_WAIT]


def test_the_last_error_is_raised_and_others_at_once(waits):
    with pytest.raises(TimeoutError, match="last"):
        with_retries(failing(*[TimeoutError("no")] * (ATTEMPTS - 1), TimeoutError("last"), TimeoutError("after it")))
    assert len(waits) == ATTEMPTS - 1
    waits.clear()
    with pytest.raises(KeyError):
        with_retries(failing(KeyError("a")))
    assert not waits


def test_waiting_can_be_stopped():
    class StopError(Exception):
        pass

    def stop(_, doing):
        assert doing == "waiting to try again"
        raise StopError

    start = time.monotonic()
    with progress.watching(stop), pytest.raises(StopError):
        with_retries(failing(BusyError("busy", after=30)))
    assert time.monotonic() - start < 20
