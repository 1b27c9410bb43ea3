"""Taggers of parts of speech, in the seventeen tags of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Tagger(Protocol):
    """Tags the words of a sentence."""

    name: str

    def __call__(self, words: Sequence[str]) -> list[str]:
        """Return the universal tag of each word."""


# The tags of the Penn Treebank, which most English taggers use.
PENN = {
    "CC": "CCONJ", "CD": "NUM", "DT": "DET", "EX": "PRON", "FW": "X", "IN": "ADP", "JJ": "ADJ", "JJR": "ADJ",
    "JJS": "ADJ", "LS": "X", "MD": "AUX", "NN": "NOUN", "NNS": "NOUN", "NNP": "PROPN", "NNPS": "PROPN", "PDT": "DET",
    "POS": "PART", "PRP": "PRON", "PRP$": "PRON", "RB": "ADV", "RBR": "ADV", "RBS": "ADV", "RP": "ADP", "SYM": "SYM",
    "TO": "PART", "UH": "INTJ", "VB": "VERB", "VBD": "VERB", "VBG": "VERB", "VBN": "VERB", "VBP": "VERB",
    "VBZ": "VERB", "WDT": "DET", "WP": "PRON", "WP$": "PRON", "WRB": "ADV", "AFX": "X", "HYPH": "PUNCT", "NFP": "PUNCT",
    "ADD": "X", "GW": "X", "XX": "X",
}  # fmt: skip


# The tags of the British National Corpus, which HanTa uses; those of verbs are handled below.
CLAWS = {
    "AJ0": "ADJ", "AJC": "ADJ", "AJS": "ADJ", "AT0": "DET", "AV0": "ADV", "AVP": "ADP", "AVQ": "ADV", "CJC": "CCONJ",
    "CJS": "SCONJ", "CJT": "SCONJ", "CRD": "NUM", "DPS": "PRON", "DT0": "DET", "DTQ": "DET", "EX0": "PRON", "IN": "ADP",
    "ITJ": "INTJ", "NN": "NOUN", "NN0": "NOUN", "NN1": "NOUN", "NN2": "NOUN", "NP0": "PROPN", "ORD": "ADJ",
    "PNI": "PRON", "PNP": "PRON", "PNQ": "PRON", "PNX": "PRON", "POS": "PART", "PRF": "ADP", "PRP": "ADP",
    "TO0": "PART", "VM0": "AUX", "XX0": "PART",
}  # fmt: skip


BE = frozenset({"be", "am", "is", "are", "was", "were", "been", "being", "'m", "'re"})
HELPING = frozenset({"have", "has", "had", "having", "do", "does", "did", "'ve"})  # auxiliaries or full verbs
BETWEEN = frozenset({"ADV", "PART", "PRON"})  # what may stand between an auxiliary and its verb

# Contractions have the tag of their first part.
CLITIC = re.compile(r"(?i)(.+?)(n['’]t|['’](?:s|re|ve|ll|d|m))")
FIRST_PART = {"ca": "can", "wo": "will", "sha": "shall", "ai": "is"}


def universal(tag: str, word: str, tags: Mapping[str, str] = PENN) -> str:
    """Translate a tag of another set; words without letters and digits are punctuation."""
    if not any(character.isalnum() for character in word):
        return "SYM" if word in {"$", "%", "+", "=", "<", ">", "€", "£", "#"} else "PUNCT"
    if tags is CLAWS and tag.startswith("V") and tag not in tags:
        return "VERB"
    return tags.get(tag.split("|")[0], "X")


def with_auxiliaries(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Tag forms of be as auxiliaries, and those of have and do where another verb follows."""
    result = list(tags)
    for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
        low = word.lower()
        if tag in ("VERB", "AUX") and low in BE:
            result[i] = "AUX"
        elif tag in ("VERB", "AUX") and low in HELPING:
            following = next((other for other in tags[i + 1 :] if other not in BETWEEN), "")
            result[i] = "AUX" if following in ("VERB", "AUX") else "VERB"
    return result


def _first_parts(words: Sequence[str]) -> list[str]:
    parts = (CLITIC.fullmatch(word) for word in words)
    firsts = (word if part is None else part[1] for word, part in zip(words, parts, strict=True))
    return [FIRST_PART.get(first.lower(), first) for first in firsts]


class HanTa:
    """The Hanover Tagger; its English model comes with it."""

    name = "HanTa"

    def __init__(self) -> None:
        from HanTa import HanoverTagger

        self._tagger: Any = HanoverTagger.HanoverTagger("morphmodel_en.pgz")

    def __call__(self, words: Sequence[str]) -> list[str]:
        if not words:
            return []
        firsts = _first_parts(words)
        tags = [universal(tag, firsts[i], CLAWS) for i, (_, _, tag) in enumerate(self._tagger.tag_sent(firsts))]
        return with_auxiliaries(firsts, tags)


class SpaCy:
    """spaCy's small English model, if it is installed."""

    name = "spaCy en_core_web_sm"

    def __init__(self) -> None:
        import spacy

        self._model: Any = spacy.load("en_core_web_sm", disable=["parser", "ner", "lemmatizer"])

    def __call__(self, words: Sequence[str]) -> list[str]:
        from spacy.tokens import Doc

        firsts = _first_parts(words)
        return with_auxiliaries(firsts, [token.pos_ for token in self._model(Doc(self._model.vocab, firsts))])


class Flair:
    """flair/pos-english, which the paper uses, if flair is installed and the hub can be reached."""

    name = "flair/pos-english"

    def __init__(self) -> None:
        from flair.models import SequenceTagger

        self._tagger: Any = SequenceTagger.load("flair/pos-english")

    def __call__(self, words: Sequence[str]) -> list[str]:
        from flair.data import Sentence

        firsts = _first_parts(words)
        sentence = Sentence(firsts, use_tokenizer=False)
        self._tagger.predict(sentence)
        tags = [universal(token.get_label("pos").value, word) for token, word in zip(sentence, firsts, strict=True)]
        return with_auxiliaries(firsts, tags)


TAGGERS: dict[str, Callable[[], Tagger]] = {"hanta": HanTa, "spacy": SpaCy, "flair": Flair}


def get_tagger(name: str | None = None) -> Tagger:
    """Create a tagger by its name; the default is HanTa."""
    name = name or "hanta"
    if name not in TAGGERS:
        raise ValueError(f"there is no tagger {name!r}; choose one of {', '.join(TAGGERS)}")
    try:
        return TAGGERS[name]()
    except (ImportError, OSError) as error:
        extra = "pip install 'whymatch[pos]'" if name == "hanta" else f"install {name} and its English model"
        raise ModuleNotFoundError(f"the tagger {name!r} is not installed ({error}): {extra}") from None
