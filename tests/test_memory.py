"""Memory that nobody needs is given back."""

from __future__ import annotations

import sys
import weakref

import pytest
import torch

from whymatch.memory import release


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_collected():
    held = weakref.ref(Cycle())
    release()
    assert held() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_what_was_freed_between_tensors_that_live_on_is_given_back():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4 // 1024  # MiB, in pages of 4 KiB

    # Small enough to lie on the heap, where a tensor that lives on keeps what is below it.
    tensors = [torch.ones(2**14) for _ in range(4096)]  # 64 KiB each, 256 MiB
    held, full = tensors[::64], resident()
    del tensors
    release()
    assert full - resident() > 128
    assert all(map(torch.Tensor.all, held))
