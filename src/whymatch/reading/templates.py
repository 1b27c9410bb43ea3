"""Chat templates: where a text stands in the conversation that a model reads instead of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from whymatch.words import Span, quote

MARK = "\ue000\ue001\ue000"  # private characters, which no text has by chance
# What apply_chat_template is told about tokenizing, and not about rendering.
TOKENIZING = {
    "common_kwargs",
    "max_length",
    "padding",
    "processor_kwargs",
    "return_dict",
    "return_tensors",
    "text_kwargs",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
} | {f"{kind}_kwargs" for kind in ("audio", "images", "videos")}


@dataclass(frozen=True)
class Place:
    """Where a text, and a prompt if there is one, stand in what a chat template made of them."""

    rendered: str
    text: Span
    prompt: Span
    stripped: int  # how many characters at the beginning of the text the template left out


@dataclass(frozen=True)
class Template:
    """A call of a chat template: which conversations it was given, and how it renders them."""

    conversations: Sequence[Any]
    render: Callable[[Any], str]

    def find(self, i: int, text: str, prompt: str | None) -> Place:
        """Find a text in the rendered i-th conversation, by rendering it with another text in its place."""
        conversation = self.conversations[i]
        rendered = self.render(conversation)
        before, found, after = self.render(_with_content(conversation, text, MARK)).partition(MARK)
        for inner in (text, text.strip()):
            if found and rendered == before + inner + after:
                start = len(before)
                at = before.rfind(prompt) if prompt else -1
                stands = (at, at + len(prompt)) if prompt and at >= 0 else (0, 0)
                return Place(rendered, (start, start + len(inner)), stands, text.find(inner) if inner else 0)
        raise TypeError(
            f"the model's chat template changes the text, and so its characters cannot be found again: {quote(text)}; "
            'give the model a modality_config that has "text" alone'
        )


@contextmanager
def record_templates(model: Any) -> Iterator[list[Template]]:
    """Record the calls of chat templates by a private copy of a model, whose tokenizers are private copies too."""
    templates: list[Template] = []
    processors = {
        id(each.processor): each.processor
        for each in model.modules()
        if hasattr(getattr(each, "processor", None), "apply_chat_template")
    }

    def record(run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run)
        def apply(conversations: Any, *args: Any, **kwargs: Any) -> Any:
            how = {key: value for key, value in kwargs.items() if key not in TOKENIZING}
            templates.append(Template(conversations, lambda each: str(run(each, tokenize=False, **how))))
            return run(conversations, *args, **kwargs)

        return apply

    for processor in processors.values():
        processor.apply_chat_template = record(processor.apply_chat_template)
    try:
        yield templates
    finally:
        for processor in processors.values():
            del processor.apply_chat_template


def _with_content(conversation: Any, text: str, other: str) -> Any:
    """Return a conversation whose last message has another text."""
    *rest, last = conversation
    content = last["content"]
    if isinstance(content, str):
        return [*rest, {**last, "content": other if content == text else content}]
    parts = [{**part, "text": other} if part.get("text") == text else part for part in content]
    return [*rest, {**last, "content": parts}]
