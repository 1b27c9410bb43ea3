"""A node postprocessor for LlamaIndex (the extra ``llamaindex``)."""

from __future__ import annotations

from typing import Any

from whymatch import Explainer
from whymatch.integrations.found import Reader, missing

try:
    from llama_index.core.bridge.pydantic import ConfigDict
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
except ImportError as error:
    raise missing("llama-index-core", "llamaindex", error) from None

KEY = "whymatch"


class HighlightPostprocessor(BaseNodePostprocessor):  # type: ignore[misc]  # the library's types are not followed
    """Adds ``metadata["whymatch"]`` to nodes that were found: ``[{start, end, score}]`` of their texts.

    LlamaIndex embeds a node's metadata together with its text, unless it is told not to; what the metadata adds to the
    score has the span (0, 0). A node that comes with its embedding must have the encoder's own.

    Attributes:
        explainer: explains with the encoder that found them.
        unit, top, check, task, prompt_name, prompt: as in :class:`whymatch.integrations.found.Reader`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    explainer: Explainer
    unit: str = "words"
    top: int | None = None
    check: bool = True
    task: Any = None
    prompt_name: Any = None
    prompt: Any = None

    @classmethod
    def class_name(cls) -> str:
        return "WhymatchHighlightPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("highlights need the query: call postprocess_nodes with query_str or query_bundle")
        options = {"task": self.task, "prompt_name": self.prompt_name, "prompt": self.prompt}
        reader = Reader(self.explainer, self.unit, self.top, **options)  # type: ignore[arg-type]  # checked there
        texts = [found.node.get_content(MetadataMode.EMBED) for found in nodes]
        if self.check:
            stored = [(text, found.node.embedding) for text, found in zip(texts, nodes, strict=True)]
            known = [each for each in stored if each[1] is not None]
            reader.check_vectors([text for text, _ in known], [vector for _, vector in known])
        every = reader.highlight(query_bundle.query_str, texts)
        for found, embedded, highlights in zip(nodes, texts, every, strict=True):
            node = found.node
            node.metadata[KEY] = _within(highlights, embedded, node.get_content(MetadataMode.NONE))
            for excluded in (node.excluded_embed_metadata_keys, node.excluded_llm_metadata_keys):
                if KEY not in excluded:
                    excluded.append(KEY)
        return nodes


def _within(highlights: Any, embedded: str, text: str) -> list[dict[str, Any]]:
    """Return the spans of the text inside what was embedded; whatever else was embedded has the span (0, 0)."""
    start = max(0, embedded.rfind(text))
    spans, beside = [], 0.0
    for span in highlights:
        low, high = span.start - start, span.end - start
        if span.end > span.start and low >= 0 and high <= len(text):
            spans.append({"start": low, "end": high, "score": span.score})
        else:
            beside += span.score
    return [*spans, {"start": 0, "end": 0, "score": beside}]
