"""What the API answers, described for programs: the shapes of its JSON, as /openapi.json gives them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SettingsAnswer(_Answer):
    model: str
    layer: int = Field(description="The block at whose input the encoder is cut; 0 is the input embeddings.")
    reference: str = Field(description="What stands for no content.")
    fold_reference: bool = Field(description="Whether the reference's embedding is given back to the tokens.")
    similarity: str
    rule: str
    steps: int | None
    tolerance: float
    blocks: list[str] | None
    trust_remote_code: bool
    path: str
    mask: str | None
    budget: int | None
    special: str
    base: float = Field(description="What tokens hand over of their shares of the embedding, with special=base.")
    divisions: int = Field(description="How often words are divided into parts, whose embeddings correct the entries.")


class SideAnswer(_Answer):
    text: str
    tokens: list[str] = Field(description="What each part is called; lists have one entry for each part.")
    offsets: list[tuple[int, int]] = Field(description="The characters of the text that a part stands for.")
    kinds: list[str] = Field(description="text, special, prompt, patch or group.")
    boxes: list[tuple[int, int, int, int]] | None = Field(description="The pixels of each patch of a picture.")
    image: tuple[str, int, int] | None
    truncated: bool = Field(description="Whether the model read only the beginning of the text.")
    unit: str = Field(description="What a part is: token, word, sentence, span, patch or group.")
    nodes: int
    mode: str
    effects: list[float] = Field(description="What a part has to do with the other side's reference.")
    errors: list[float]
    sizes: list[float]
    own: list[float]
    moved: float


class WordsAnswer(_Answer):
    groups: list[list[int]] = Field(description="The numbers of the tokens of each word.")
    labels: list[str]


class ViewAnswer(_Answer):
    account: str
    derivation: str
    words: tuple[WordsAnswer, WordsAnswer] | None = Field(description="The words of both texts.")
    links: dict[str, list[tuple[int, int]]] = Field(description="Rows and columns that are each other's strongest.")
    missing: dict[str, tuple[list[float], list[float]]] | None = Field(
        None, description="What each token or word lacks of a perfect match."
    )


class ExplanationAnswer(_Answer):
    format: Literal["whymatch.explanation"]
    version: int
    score: float = Field(description="What the model itself gives the pair.")
    error: float = Field(description="How far the sum is from the score; measured.")
    entry_error: float | None = Field(description="How far any entry may be from its exact value.")
    matrix: list[list[float]] = Field(description="What each part of a with each part of b adds to the score.")
    constant: float
    norms: float
    a: SideAnswer
    b: SideAnswer
    reduce: Literal["sum", "mean"]
    deviations: list[list[float]] | None
    settings: SettingsAnswer
    view: ViewAnswer = Field(description="What the page needs beside it.")


class SpanAnswer(_Answer):
    start: int
    end: int
    score: float = Field(description="What these characters add to the score.")


class HighlightAnswer(SpanAnswer):
    text: str


class HighlightsAnswer(_Answer):
    query: str
    text: str
    score: float
    error: float
    unit: str
    read: int = Field(description="How many characters the model has read.")
    left_out: float = Field(description="What spans add that are not in the list.")
    highlights: list[HighlightAnswer] = Field(description="In the order of the text; they sum to the score.")


class AnsweredWord(_Answer):
    word: str
    value: float = Field(description="What the pair of the two words adds to the score.")
    query_word: str
    span: tuple[int, int]
    total: float = Field(description="What the word adds with all of the query.")


class HitAnswer(_Answer):
    rank: int
    index: int = Field(description="The document's place among those that were given, from 0.")
    id: str | None
    title: str | None
    metadata: dict[str, Any]
    score: float
    text: str
    read: int
    highlights: list[SpanAnswer]
    answers: list[AnsweredWord] = Field(description="Its strongest words, and the words of the query that they match.")
    explanation: ExplanationAnswer


class BackgroundAnswer(_Answer):
    name: str
    score: float = Field(description="The mean of the query's scores with the documents that were searched.")
    totals: list[float] = Field(description="What it contributes to each part of the query.")
    beside: float


class RankingAnswer(_Answer):
    format: Literal["whymatch.ranking"]
    version: int
    query: str
    searched: int = Field(description="How many documents there were.")
    hits: list[HitAnswer]
    background: BackgroundAnswer | None = Field(description="What is usual: the mean of the documents.")


class QueryWordAnswer(_Answer):
    word: str
    start: int
    end: int
    value: float = Field(description="a − b; these sum to the difference.")
    a: float = Field(description="What the first document gives the word.")
    b: float


class ContrastAnswer(_Answer):
    format: Literal["whymatch.contrast"]
    version: int
    query: str
    model: str
    difference: float = Field(description="The first score minus the second.")
    error: float
    score_a: float
    score_b: float
    name_a: str
    name_b: str
    by_query_word: list[QueryWordAnswer]
    a: HighlightsAnswer
    b: HighlightsAnswer | None = Field(description="The second document's words; a background has none.")


class ModelAnswer(_Answer):
    name: str
    layers: int = Field(description="How many blocks it has.")
    layer: int = Field(description="The layer that is recommended for a pair.")
    list_layer: int = Field(description="The layer that is recommended for passages and lists.")
    path: str
    similarity: str
    tolerance: float


class HealthAnswer(_Answer):
    status: Literal["ok"]
    version: str
    waiting: int = Field(description="How many requests are being answered or wait.")


class ErrorAnswer(_Answer):
    error: str = Field(description="What is wrong, and what to do about it.")
