"""What the attacks share: their size and seed, a tally of outcomes, and the command line in a forked child.

Environment: ``WHYMATCH_TORTURE`` scales the number of trials (1 by default, 0.1 for a quick look, 10 for a night);
``WHYMATCH_TORTURE_SEED`` chooses other random numbers (0 by default).
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCALE = float(os.environ.get("WHYMATCH_TORTURE", "1"))
SEED = int(os.environ.get("WHYMATCH_TORTURE_SEED", "0"))

REFUSALS = (ValueError, TypeError, OSError, ArithmeticError)  # what whymatch raises for what it cannot do
LONGEST_MESSAGE = 2000  # an error repeats the input, but not all 20 MB of it


def trials(count: int) -> range:
    """So many trials at scale 1, and never none."""
    return range(max(1, round(count * SCALE)))


def seeded(name: str) -> random.Random:
    """Random numbers of one attack's own, so that each file gives the same trials alone and in a whole run."""
    return random.Random(f"{SEED} {name}")


@dataclass
class Tally:
    """How many trials ended in which way, and what went wrong in those that must not have ended so."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: str, count: int = 1) -> None:
        self.outcomes[outcome] += count

    def fail(self, what: str) -> None:
        self.outcomes["failed"] += 1
        self.failures.append(what)

    def check(self) -> None:
        """Fail with all that went wrong, once every trial has run."""
        assert self.outcomes, f"{self.name}: nothing was tried"
        listed = "\n".join(f"- {ascii(what)[1:-1][:400]}" for what in self.failures[:30])
        assert not self.failures, f"{self.name}: {len(self.failures)} failures\n{listed}"


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def is_clear(message: str) -> bool:
    """Whether an error's text says something, in a few lines, without a traceback and without raw control codes."""
    return 10 < len(message) < LONGEST_MESSAGE and "Traceback" not in message and "\x1b" not in message


# ---- The command line in a forked child: nothing is imported again, and it may be killed at any moment. ----


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # minus the signal's number, if one ended it
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Whether it ended as bad input must: exit code 2 and a clear message on standard error."""
        return self.code == 2 and is_clear(self.err)

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.err[-300:]!r}"


class Command:
    """``whymatch`` with some arguments, running in a child of this process.

    Args:
        folder: where its output is kept until it has ended.
        cwd: the folder that it runs in.
        memory: how many bytes of address space it may take beyond what it begins with; None does not limit it.
        constants: ``module attribute -> value``, set in the child only. Batch jobs write a part every half minute; a
            shorter interval lets kills meet many parts.
    """

    def __init__(
        self,
        *args: object,
        folder: Path,
        memory: int | None = None,
        constants: dict[str, Any] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._paths = [folder / f"{name}-{time.monotonic_ns()}.log" for name in ("out", "err")]
        self.pid = os.fork()
        if self.pid == 0:
            self._child([str(arg) for arg in args], memory, constants or {}, cwd)

    def _child(self, args: list[str], memory: int | None, constants: dict[str, Any], cwd: Path | None) -> None:
        code = 1
        try:
            for number, path in enumerate(self._paths, 1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            warnings.resetwarnings()
            if cwd is not None:
                os.chdir(cwd)
            if memory is not None:
                taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for name, value in constants.items():
                module, _, attribute = name.rpartition(".")
                __import__(module)
                assert hasattr(sys.modules[module], attribute), f"{name} is gone"
                setattr(sys.modules[module], attribute, value)
            from whymatch.cli import main

            sys.argv = ["whymatch", *args]
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float = 300) -> Ended:
        """How it ended; one that hangs is killed, and shows as ended by signal 9."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.005)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        texts = []
        for path in self._paths:
            texts.append(path.read_text(encoding="utf-8", errors="replace") if path.exists() else "")
            path.unlink(missing_ok=True)
        return Ended(code, *texts)


def flip(path: Path, rng: random.Random, low: int = 0) -> tuple[bytes, str]:
    """Flip one random bit of a file, from byte ``low`` on; returns what it held before, and which bit it was."""
    before = path.read_bytes()
    content = bytearray(before)
    place, bit = rng.randrange(low, len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return before, f"bit {bit} of byte {place:,} of {len(content):,} in {path.name}"
