"""Names that are imported when they are first used."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from whymatch import lazy


def test_a_home_is_imported_on_first_use(tmp_path, monkeypatch):
    (tmp_path / "late_home.py").write_text("value = 7")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "early", ModuleType("early"))
    get, names = lazy.attributes("early", {"value": "late_home"})
    assert "value" in names()
    assert "late_home" not in sys.modules
    assert get("value") == 7
    monkeypatch.delitem(sys.modules, "late_home")
    with pytest.raises(AttributeError, match="module 'early' has no attribute 'other'"):
        get("other")
