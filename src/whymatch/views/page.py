"""Explanations as one self-contained page (jinja2): what it needs is in it, and it asks the network for nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from whymatch.text import group_words, labels_of

if TYPE_CHECKING:
    from whymatch.explanation import Explanation

# Everything that comes from a text is escaped by the template engine, and reaches the document as text, not as markup.
_TEMPLATES = Environment(loader=PackageLoader("whymatch.views"), autoescape=True)


def page(
    explanations: Sequence[Explanation],
    heading: str | None = None,
    names: Sequence[str] | None = None,
    begin: str = "tokens",
) -> str:
    """A page with one explanation, or with many under their ``names``; it begins with tokens or with words."""
    if not explanations:
        raise ValueError("a page needs at least one explanation")
    first = explanations[0]
    payloads = [payload(why) for why in explanations]
    for one in payloads:
        one["view"]["begin"] = begin
    for one, name in zip(payloads, names or [], strict=False):
        one["view"]["heading"] = name
    return _TEMPLATES.get_template("page.html.j2").render(
        title=f"{first.score:.2f}: {first.text_a[:40]} / {first.text_b[:40]}",
        heading=heading or "Why do these match?",
        payload=payloads,
        style=Markup(static("view.css")),
        script=Markup(static("view.js")),
    )


def frame(why: Explanation) -> str:
    """The page in a frame that nothing around it can reach, and that can reach nothing around it."""
    return (
        f'<iframe srcdoc="{html.escape(page([why]))}" sandbox="allow-scripts" title="Why do these match?" '
        'style="width: 100%; height: 46rem; border: 0"></iframe>'
    )


def payload(why: Explanation) -> dict[str, Any]:
    """What the page's script is given: the explanation itself, and what a view would otherwise have to find out."""
    words = why.words() if "token" in why.units and why.sums_to_score else None
    sides = (
        (why.text_a, why.tokens_a, why.offsets_a),
        (why.text_b, why.tokens_b, why.offsets_b),
    )
    view: dict[str, Any] = {"account": why.account, "words": None, "links": {}, "share": {}}
    if words is not None:
        groups = [group_words(text, offsets) for text, _, offsets in sides]
        view["words"] = [
            {"groups": group, "labels": labels_of(text, tokens, offsets, group)[0]}
            for (text, tokens, offsets), group in zip(sides, groups, strict=True)
        ]
    for name, one in (("tokens", why), ("words", words)):
        if one is not None:
            found = one.align()
            view["links"][name] = [[link.i, link.j] for link in found.links]
            view["share"][name] = found.share
    return why.to_dict() | {"view": view}


def static(name: str) -> str:
    """A file that the page and the explorer share."""
    return files("whymatch.views").joinpath("static").joinpath(name).read_text(encoding="utf-8")
