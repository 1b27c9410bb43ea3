"""Tables for pandas."""

from __future__ import annotations

import sys

import pytest

from whymatch.frames import to_frame


def test_a_frame_has_its_columns_without_rows():
    pytest.importorskip("pandas", reason="the extra pandas is not installed")
    assert list(to_frame([], ["b", "a"]).columns) == ["b", "a"]
    frame = to_frame([{"a": 1, "b": 2, "c": 3}], ["b", "a"])
    assert frame.to_dict("records") == [{"b": 2, "a": 1}]


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas: pip install 'whymatch\[pandas\]'"):
        to_frame([], [])
