"""Memory that is not needed any more."""

from __future__ import annotations

import ctypes
import gc
import sys


def release() -> None:
    """Collect garbage, and give the memory that is free back to the system.

    A cut of a model is a cycle, so that a copy of its weights may outlive it for long. And what was freed between
    tensors that live on stays with the process, unless the C library is asked for it.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc alone has it
    if trim is not None:
        trim(0)
