"""An explanation as a notebook's widget: its state is shared, so that Python and the reader both can move it.

``why.widget(explainer)`` makes one. It needs anywidget, the extra ``widget``; without it, the page is shown instead.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from whymatch.views.page import frame, page, payload, read_static

if TYPE_CHECKING:
    from whymatch import Explainer
    from whymatch.results.explanation import Explanation


def show(why: Explanation, explainer: Explainer | None = None) -> Any:
    """Return a widget of an explanation; or the explanation, which shows itself as a page, if anywidget is missing.

    Args:
        why: the explanation.
        explainer: what explains other texts and layers; without it the widget only shows.
    """
    try:
        widget = _widget_class()
    except ImportError:
        warnings.warn(
            "the widget needs anywidget, and the page is shown instead: pip install 'whymatch[widget]'", stacklevel=3
        )
        return why
    return widget(why, explainer)


@cache
def _widget_class() -> Any:
    """Define the class when it is first needed: anywidget is an extra."""
    import anywidget
    import traitlets

    class Widget(anywidget.AnyWidget):  # type: ignore[misc]
        """An explanation whose view and state are one.

        Attributes:
            texts: the two texts; setting them explains them.
            layer: the layer; setting it explains the texts there.
            level: what is shown, "words" or "tokens".
            pinned: the part that is pinned, (0 or 1, its number), or None. Its number counts what is shown.
            hovered: the part that is pointed at, likewise; setting it shows what that part matched.
            explanation: what is shown, as an :class:`whymatch.Explanation`.
        """

        _esm = read_static("view.js") + read_static("widget.js")
        style = traitlets.Unicode(
            read_static("view.css").replace(":root", ":host").replace("\nbody {", "\n.wm-body {")
        ).tag(sync=True)
        data = traitlets.Dict().tag(sync=True)
        texts = traitlets.Tuple(traitlets.Unicode(), traitlets.Unicode()).tag(sync=True)
        layer = traitlets.Int(0).tag(sync=True)
        layers = traitlets.Int(0).tag(sync=True)
        level = traitlets.Enum(["words", "tokens"], default_value="words").tag(sync=True)
        pinned = traitlets.Tuple(traitlets.Int(), traitlets.Int(), allow_none=True, default_value=None).tag(sync=True)
        hovered = traitlets.Tuple(traitlets.Int(), traitlets.Int(), allow_none=True, default_value=None).tag(sync=True)
        busy = traitlets.Bool(False).tag(sync=True)
        error = traitlets.Unicode("").tag(sync=True)

        def __init__(self, why: Explanation, explainer: Explainer | None = None) -> None:
            self.explanation = why
            self._explainer = explainer
            super().__init__(
                data=_plain(payload(why)),
                texts=(why.text_a, why.text_b),
                layer=why.layer,
                layers=0 if explainer is None else explainer.num_layers,
            )
            self.observe(self._explain_again, names=["texts", "layer"])

        def explain(self, text_a: str, text_b: str) -> Explanation:
            """Explain two texts and show the result."""
            self.texts = (text_a, text_b)
            if self.error:
                raise ValueError(self.error)
            return self.explanation

        @property
        def selected(self) -> Any:
            """The strongest pairs of the part that is pinned; empty where none is."""
            if self.pinned is None:
                return []
            side, number = self.pinned
            words = self.level == "words" and "token" in self.explanation.units
            why = self.explanation.words() if words else self.explanation
            count = why.matrix.shape[1 - side]
            pairs = [why.entry(*((number, k) if side == 0 else (k, number))) for k in range(count)]
            return sorted(pairs, key=lambda pair: -abs(pair.value))

        def _explain_again(self, change: Any) -> None:
            if self._explainer is None:
                raise ValueError(
                    f"this widget has no explainer, and cannot change its {change['name']}: why.widget(explainer) can"
                )
            self.busy, self.error = True, ""
            try:
                explainer = self._explainer.at_layer(self.layer)
                self.explanation = explainer.explain(*self.texts)
            except (ValueError, TypeError, ArithmeticError) as error:
                self.error = str(error)  # shown in the widget, where it was asked
            else:
                self.pinned = self.hovered = None
                self.data = _plain(payload(self.explanation))
            finally:
                self.busy = False

        def _repr_mimebundle_(self, **options: Any) -> Any:
            """Add the page, for readers of a saved notebook, where no widget runs."""
            bundle = super()._repr_mimebundle_(**options)
            data, *rest = bundle if isinstance(bundle, tuple) else (bundle,)
            data = {**(data or {}), "text/html": frame(page([self.explanation]))}
            return (data, *rest) if rest else data

    return Widget


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them: otherwise each comparison of states would find a difference."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
