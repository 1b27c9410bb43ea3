"""Parsers that say which part a word plays in its sentence: subject, predicate, object, and what goes with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from whymatch.studies.taggers import Tagger, get_tagger

ROLES = ("subject", "predicate", "object", "oblique", "modifier", "other")

# The labels of Universal Dependencies, and those of spaCy's English models.
DEPENDENCIES = {
    "nsubj": "subject", "nsubjpass": "subject", "csubj": "subject", "csubjpass": "subject", "expl": "subject",
    "root": "predicate",
    "obj": "object", "dobj": "object", "iobj": "object", "dative": "object",
    "obl": "oblique", "pobj": "oblique", "agent": "oblique", "nmod": "oblique",
    "amod": "modifier", "advmod": "modifier", "npadvmod": "modifier", "compound": "modifier", "nummod": "modifier",
    "poss": "modifier", "appos": "modifier", "acl": "modifier", "relcl": "modifier", "neg": "modifier",
    "acomp": "predicate", "attr": "predicate",
}  # fmt: skip

NOMINAL = frozenset({"NOUN", "PROPN", "PRON"})
IN_PHRASE = frozenset({"DET", "ADJ", "NUM", *NOMINAL})  # what a noun phrase may consist of, up to its head


class Parser(Protocol):
    """Says which part each word of a sentence plays."""

    name: str

    def __call__(self, words: Sequence[str]) -> list[str]:
        """Return the role of each word, one of :data:`ROLES`."""


class SpaCy:
    """The dependency parser of spaCy's small English model, if it is installed."""

    name = "spaCy en_core_web_sm"

    def __init__(self) -> None:
        import spacy

        self._model: Any = spacy.load("en_core_web_sm", disable=["ner", "lemmatizer"])

    def __call__(self, words: Sequence[str]) -> list[str]:
        from spacy.tokens import Doc

        document = self._model(Doc(self._model.vocab, list(words)))
        return [DEPENDENCIES.get(token.dep_.lower().partition(":")[0], "other") for token in document]


class WordOrder:
    """English word order and parts of speech: a rough stand-in where there is no dependency parser.

    The first full verb is the predicate; the heads of noun phrases before it are subjects, those after it objects, and
    those after a preposition obliques. Relative clauses, questions and passives with *by* fool it.
    """

    name = "word order"

    def __init__(self, tagger: Tagger | None = None) -> None:
        self._tagger = tagger or get_tagger()

    def __call__(self, words: Sequence[str]) -> list[str]:
        return roles_by_order(self._tagger(words))


def roles_by_order(tags: Sequence[str]) -> list[str]:
    """Guess the role of each word from the tags of a sentence."""
    verbs = [i for i, tag in enumerate(tags) if tag == "VERB"] or [i for i, tag in enumerate(tags) if tag == "AUX"]
    predicate = verbs[0] if verbs else len(tags)
    roles, after_preposition = [], False
    for i, tag in enumerate(tags):
        role = "other"
        if i == predicate:
            role = "predicate"
        elif tag in NOMINAL:
            following = tags[i + 1] if i + 1 < len(tags) else ""
            if following in ("NOUN", "PROPN"):
                role = "modifier"  # "flute player": only the last noun is the head
            else:
                role = "oblique" if after_preposition else "subject" if i < predicate else "object"
        elif tag in ("ADJ", "ADV", "NUM"):
            role = "modifier"
        roles.append(role)
        if tag == "ADP":
            after_preposition = True
        elif tag not in IN_PHRASE or (tag in NOMINAL and role != "modifier"):
            after_preposition = False
    return roles


PARSERS: dict[str, Callable[[], Parser]] = {"spacy": SpaCy, "order": WordOrder}


def get_parser(name: str | None = None) -> Parser:
    """Create a parser by its name; the default is spaCy's, the only one that parses."""
    name = name or "spacy"
    if name not in PARSERS:
        raise ValueError(f"there is no parser {name!r}; choose one of {', '.join(PARSERS)}")
    try:
        return PARSERS[name]()
    except (ImportError, OSError) as error:
        how = "pip install 'whymatch[roles]', then python -m spacy download en_core_web_sm; or --parser order"
        raise ModuleNotFoundError(
            f"the parser {name!r} is not installed ({str(error).splitlines()[0]}): {how}, which guesses by word order"
        ) from None
