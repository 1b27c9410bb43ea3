"""The widget: its state goes both ways, it explains again when asked, and without anywidget there is the page."""

from __future__ import annotations

import sys

import pytest

from test_explanation import explanation
from whymatch import Explainer
from whymatch.views import widget as module

PAIR = ("The coffee is not good.", "This is bad coffee.")


@pytest.fixture
def explainer(load):
    pytest.importorskip("anywidget", reason="the extra widget is not installed")
    return Explainer(load(), layer=2)


def test_layers_and_texts_are_explained_where_they_are_set(explainer):
    why = explainer.explain(*PAIR)
    view = why.widget(explainer)
    assert (view.texts, view.layer, view.layers) == (PAIR, 2, 3)
    assert view.data["score"] == why.score
    view.layer = 1
    assert view.explanation.layer == view.data["settings"]["layer"] == 1
    assert view.data["matrix"] == explainer.at_layer(1).explain(*PAIR).matrix.tolist()
    view.set_state({"texts": ["bad coffee", "two dogs"]})  # as the browser sends it
    assert view.explanation.text_a == "bad coffee"
    assert view.explain("two dogs", "bad coffee").text_b == "bad coffee"


def test_what_is_pinned_in_the_browser_is_known_in_python(explainer):
    why = explainer.explain(*PAIR)
    view = why.widget(explainer)
    words = why.words()
    number = words.tokens_b.index("coffee")
    view.set_state({"pinned": [1, number]})
    assert {pair.token_b for pair in view.selected} == {"coffee"}
    assert sum(pair.value for pair in view.selected) == pytest.approx(words.totals("b")[number])
    view.level = "tokens"
    view.pinned = (0, 0)
    assert view.selected[0].token_a == why.tokens_a[0]
    view.layer = 1
    assert view.pinned is None
    assert view.selected == []
    with pytest.raises(Exception, match="letters"):
        view.level = "letters"


def test_what_goes_wrong_is_said_in_the_widget_and_the_result_stays(explainer):
    view = explainer.explain(*PAIR).widget(explainer)
    view.layer = 9
    assert "layer 9 is out of range" in view.error
    assert view.data["settings"]["layer"] == 2
    assert not view.busy
    with pytest.raises(ValueError, match=r"why.widget\(explainer\) can"):
        explainer.explain(*PAIR).widget().layer = 1


def test_saved_notebooks_have_the_page(explainer):
    bundle = explainer.explain(*PAIR).widget()._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "<iframe" in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data


def test_without_anywidget_the_page_is_shown(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    module._widget_class.cache_clear()
    why = explanation()
    with pytest.warns(UserWarning, match=r"the page is shown instead: pip install 'whymatch\[widget\]'"):
        assert why.widget() is why
    module._widget_class.cache_clear()
