"""Broken tables: every line of a file is a row of the dataset or in the errors table."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import pyarrow.parquet as pq
from attack import Command, seeded, trials


def write_broken(path: Path, count: int, rng: random.Random) -> tuple[set[tuple[str, str]], int]:
    """A CSV file with stray quotation marks; returns its good rows, and how many lines cannot be rows.

    No stray mark can be read as closing another: what follows one is always a letter.
    """
    good: set[tuple[str, str]] = set()
    bad = 0
    lines = ["text_a,text_b"]
    for i in range(count):
        kind = rng.random()
        pair = (f"good {i}", f"coffee {i}")
        if kind < 0.15:
            lines.append(f'x{i},"open {i}')
            bad += 1
            continue
        if kind < 0.25:
            pair = (f"two {i}\nlines, of course", f'said "yes" {i}')
            text = io.StringIO()
            csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="").writerow(pair)
            lines.append(text.getvalue())
        elif kind < 0.3:
            lines.append(f"lonely {i}")
            bad += 1
            continue
        elif kind < 0.35:
            lines.append(f"a {i},b,c,d")
            bad += 1
            continue
        else:
            lines.append(",".join(pair))
        good.add(pair)
    path.write_text("\n".join(lines) + "\n")
    return good, bad


def test_stray_quotation_marks(folder, tmp_path, tally):
    rng = seeded("quotes")
    for number in trials(20):
        path = tmp_path / f"{number}.csv"
        good, bad = write_broken(path, 200, rng)
        out = tmp_path / f"out-{number}"
        ended = Command("batch", path, out, "--model", folder, "--layer", "-1", folder=tmp_path).wait()
        if ended.code != 0:
            tally.fail(f"file {number}: {ended}")
            continue
        rows = [(row["text_a"], row["text_b"]) for row in pq.read_table(out).to_pylist()]
        errors = len(pq.read_table(tmp_path / f"out-{number}.job/errors")) if bad else 0
        lost = good - set(rows)
        if lost or len(rows) != len(good):
            tally.fail(f"file {number}: {len(rows)} rows of {len(good)}; lost: {sorted(lost)[:2]}")
        elif errors < bad:
            tally.fail(f"file {number}: {errors} errors, for {bad} lines that cannot be rows")
        else:
            tally.add("good rows kept", len(good))
            tally.add("bad lines listed", bad)
    tally.check()


def test_a_long_file_of_stray_marks_is_read_in_time(folder, tmp_path, tally):
    """Reading must be linear: a quadratic reader needs many minutes for this file."""
    path = tmp_path / "marks.csv"
    path.write_text("text_a,text_b\n" + 'a"b,"x\n' * 40_000 + "good,coffee\n")
    ended = Command("batch", path, tmp_path / "out", "--model", folder, "--layer", "-1", folder=tmp_path).wait(120)
    if ended.code != 0:
        tally.fail(f"40,000 lines with stray marks: {ended}")
    else:
        rows = pq.read_table(tmp_path / "out").to_pylist()
        errors = pq.read_table(tmp_path / "out.job/errors").to_pylist()
        if len(rows) + len(errors) != 40_001 or ("good", "coffee") not in {(r["text_a"], r["text_b"]) for r in rows}:
            tally.fail(f"{len(rows)} rows and {len(errors)} errors for 40,001 lines")
        tally.add("lines accounted for", len(rows) + len(errors))
    tally.check()


def test_random_bytes(folder, tmp_path, tally):
    """Files of any content, in every format: explained, or refused with a clear error."""
    rng = seeded("bytes")
    for number in trials(60):
        suffix = rng.choice([".csv", ".tsv", ".jsonl", ".parquet", ".txt"])
        kind = rng.random()
        if kind < 0.4:
            content = rng.randbytes(rng.randrange(2000))
        elif kind < 0.7:
            alphabet = "ab,;\t\"'\\\n\r\x00{}[]:é\x1b"
            content = "".join(rng.choices(alphabet, k=rng.randrange(1, 800))).encode()
        else:
            content = b"\x1b[31mtext_a,text_b\x07\n" + rng.randbytes(40) + b"\nPAR1" + b"[" * rng.choice([10, 100_000])
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(content)
        out = tmp_path / f"out-{number}"
        ended = Command("batch", path, out, "--model", folder, "--layer", "-1", folder=tmp_path).wait()
        if "\x1b" in (ended.out + ended.err).replace("\x1b[?25", ""):
            tally.fail(f"{suffix} {number}: a raw escape reached the terminal: {ended}")
        elif ended.code == 0:
            tally.add("read")
        elif ended.refused:
            tally.add("refused")
        else:
            tally.fail(f"{suffix} {number}: {ended}")
    tally.check()
