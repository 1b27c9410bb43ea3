"""Results as one self-contained page each (jinja2), which needs no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from whymatch.results.contrast import describe_background
from whymatch.words import group_words

if TYPE_CHECKING:
    from whymatch.results.contrast import Contrast
    from whymatch.results.explanation import Explanation
    from whymatch.results.highlights import Highlights
    from whymatch.results.ranking import Ranking

# The template engine escapes whatever comes from a text: it reaches the document as text, never as markup.
_TEMPLATES = Environment(loader=PackageLoader("whymatch.views"), autoescape=True)


def page(explanations: Sequence[Explanation], heading: str | None = None, begin: str | None = None) -> str:
    """Render a page of explanations.

    Args:
        explanations: at least one.
        heading: the page's own heading.
        begin: what the page shows first, ``"tokens"`` or ``"words"``; None is words, where there are any.
    """
    if not explanations:
        raise ValueError("a page needs at least one explanation")
    first = explanations[0]
    payloads = [payload(why) for why in explanations]
    for data in payloads:
        data["view"]["begin"] = begin
    title = f"{first.score:.2f}: {first.text_a[:40]} / {first.text_b[:40]}"
    return _render("whymatchView", payloads, title, heading or VIEWS["whymatchView"])


def ranking_page(ranking: Ranking) -> str:
    """Render a page of hits, any two of which can be compared."""
    if not ranking.hits:
        raise ValueError("a ranking without hits has nothing to show")
    title = f"Best of {ranking.searched} for: {ranking.query}"
    return _render("whymatchRanking", [ranking_payload(ranking)], title, VIEWS["whymatchRanking"])


def contrast_page(contrast: Contrast) -> str:
    """Render a page that says why one document scores higher than another."""
    names = contrast.name_a, contrast.name_b
    heading = f"Why {names[0]} and not {names[1]}" if contrast.b else f"{names[0]} against what is usual, {names[1]}"
    heading += f", for: {contrast.query}"
    return _render("whymatchContrast", [contrast.to_dict()], f"{contrast.difference:+.3f}: {contrast.query}", heading)


def highlights_page(highlights: Highlights) -> str:
    """Render a page of one text and what its spans add."""
    title = f"{highlights.score:.2f}: {highlights.text[:60]}"
    query = " ".join(highlights.query.split())
    heading = f"What of this text matches “{query}”?" if query else VIEWS["whymatchHighlights"]
    return _render("whymatchHighlights", [highlights.to_dict()], title, heading)


# The functions of the page's script, and the headings of their pages.
VIEWS = {
    "whymatchView": "Why do these match?",
    "whymatchRanking": "Why these hits?",
    "whymatchContrast": "Why this one, and not that one?",
    "whymatchHighlights": "What of this text matches?",
}


def empty_page(view: str) -> str:
    """Render a page without results, into which the explorer writes those that it has."""
    return _render(view, [], "whymatch", VIEWS[view])


def _render(function: str, payloads: list[Any], title: str, heading: str) -> str:
    return _TEMPLATES.get_template("page.html.j2").render(
        title=title,
        heading=heading,
        payload=payloads,
        function=function,
        style=Markup(read_static("view.css")),
        script=Markup(read_static("view.js")),
    )


def frame(content: str, height: float = 46) -> str:
    """Put a page into a frame, which cannot reach the document around it and cannot be reached from there.

    Args:
        content: the page.
        height: of the frame, in lines of text.
    """
    return (
        f'<iframe srcdoc="{html.escape(content)}" sandbox="allow-scripts allow-downloads" title="Why do these match?" '
        f'style="width: 100%; height: {height:g}rem; border: 0"></iframe>'
    )


def payload(why: Explanation) -> dict[str, Any]:
    """Collect what the page's script needs: the explanation, its words, and its alignment."""
    words = why.words() if "token" in why.units and why.sums_to_score else None
    view: dict[str, Any] = {"account": why.account, "derivation": why.derivation, "words": None, "links": {}}
    if words is not None:
        view["words"] = [
            {"groups": group_words(side.text, side.offsets), "labels": merged.tokens}
            for side, merged in ((why.a, words.a), (why.b, words.b))
        ]
    for name, level in (("tokens", why), ("words", words)):
        if level is not None:
            view["links"][name] = [[link.i, link.j] for link in level.align().links]
    if why.settings.fold_reference and why.sums_to_score and len(why.a.own) and len(why.b.own):
        view["missing"] = {
            name: [values.tolist() for values in level.missing]
            for name, level in (("tokens", why), ("words", words))
            if level is not None
        }
    return why.to_dict() | {"view": view}


def ranking_payload(ranking: Ranking) -> dict[str, Any]:
    """Collect what a list of hits needs."""
    data: dict[str, Any] = ranking.to_dict() | {"background": None}
    if ranking.background is not None and ranking.decomposition is not None:
        data["background"] = describe_background(ranking.decomposition, ranking.background)
    for hit, hit_data in zip(ranking, data["hits"], strict=True):
        hit_data["explanation"] = payload(hit.explanation)
    return data


def read_static(name: str) -> str:
    """Read a file of the views' scripts and styles."""
    return files("whymatch.views").joinpath("static").joinpath(name).read_text(encoding="utf-8")
