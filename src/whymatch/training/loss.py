"""The training objectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss, pad

from whymatch.encoders.adjusted import shift_of

TOGETHER = 12  # texts that run together, sorted by length: more of them would be padded more


class PairLoss(nn.Module):
    """The mean squared error of a pair's cosine, or of its scaled dot product, against a score from 0 to 1.

    Args:
        model: the SentenceTransformer that is trained.
        objective: ``"cosine"`` or ``"dot"``.
        scale: what a dot product is multiplied by. It does not change how the model ranks, only how long its embeddings
            must become.
        zero: the dot product that stands for the score 0. It does not change how the model ranks either: shifted
            embeddings have a part in common, which training then need not remove.
        learned: whether the scale is trained too.
        own: the weight of a term that asks a text's score with itself to be 1, as its cosine always is.
        fewer_digits: whether the model's matrix products are computed in bfloat16; the loss itself never is.
    """

    def __init__(
        self,
        model: Any,
        objective: str,
        scale: float = 1.0,
        zero: float = 0.0,
        *,
        learned: bool = False,
        own: float = 0.0,
        fewer_digits: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.zero = zero
        self.own = own
        self._fewer_digits = fewer_digits
        # The logarithm is trained, so that the scale stays positive.
        self.log_scale = nn.Parameter(torch.tensor(scale).log().to(model.device), requires_grad=learned)

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor) -> Tensor:
        # Not left to the trainer, which looks after the model's own forward: embed runs the model's parts.
        with torch.autocast(self.log_scale.device.type, torch.bfloat16, enabled=self._fewer_digits):
            embeddings = embed(self.model, list(sentence_features))
        a, b = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in embeddings)
        targets = labels.to(a.dtype).view(-1)
        if self.objective == "cosine":
            return mse_loss(cosine_similarity(a, b), targets)
        scale = self.log_scale.exp()
        loss = mse_loss(scale * ((a * b).sum(1) - self.zero), targets)
        if self.own:
            with_itself = scale * (torch.cat([a, b]).square().sum(1) - self.zero)
            loss = loss + self.own * mse_loss(with_itself, torch.ones_like(with_itself))
        return loss


def embed(model: Any, columns: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Embed every column of a batch.

    Texts of similar length run together, with little padding; the references of an adjusted model run among them, each
    once.
    """
    merged = _merged(model, columns)
    if merged is None:
        return [model(dict(features))["sentence_embedding"] for features in columns]
    ends = list(accumulate(len(features["input_ids"]) for features in columns))
    shift = shift_of(model)
    if shift is None or len(list(model.children())) > 1:
        embeddings = _by_length(model, lambda features: model(features)["sentence_embedding"], merged)
    else:
        both, number = shift.with_references(merged)
        unshifted = _by_length(model, shift.unshifted, both)
        embeddings = unshifted[: ends[-1]] - unshifted[number]
    return list(embeddings.tensor_split(ends[:-1]))


def _by_length(model: nn.Module, run: Callable[[dict[str, Any]], Tensor], features: dict[str, Any]) -> Tensor:
    ids, lengths = features["input_ids"], features["attention_mask"].sum(1)
    order = lengths.argsort()
    # On an accelerator, one large batch is faster than several with less padding.
    together = TOGETHER if lengths.device.type == "cpu" else len(order)
    embeddings = []
    with _LookedUpOnce(model, ids) as lookup:
        for rows in order.tensor_split(-(-len(order) // together)):
            longest = int(lengths[rows].max())
            part = {n: v[rows, :longest] if isinstance(v, Tensor) else v for n, v in features.items()}
            lookup.part = part["input_ids"], rows
            embeddings.append(run(part))
    return torch.cat(embeddings)[order.argsort()]


class _LookedUpOnce:
    """Looks up the vectors of all tokens of a batch at once, though the batch runs in parts.

    The gradient of a lookup is as large as the vocabulary: one for each part took a quarter of a small model's step.
    """

    def __init__(self, model: nn.Module, ids: Tensor) -> None:
        self.part: tuple[Tensor, Tensor] | None = None  # the tokens of the part that runs, and its rows of the batch
        self._ids = ids
        self._vectors: dict[nn.Module, Tensor] = {}
        self._tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]

    def __enter__(self) -> _LookedUpOnce:
        self._hooks = [table.register_forward_hook(self._instead) for table in self._tables]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _instead(self, table: nn.Embedding, given: tuple[Any, ...], _found: Tensor) -> Tensor | None:
        """Return the batch's vectors instead of what was found, which gets no gradient; None leaves it as it is."""
        if self.part is None or not given or given[0] is not self.part[0]:
            return None  # not the table of tokens
        ids, rows = self.part
        if table not in self._vectors:
            self._vectors[table] = table.forward(self._ids)
        return self._vectors[table][rows, : ids.shape[1]]


def _merged(model: Any, columns: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Merge the texts of all columns into one batch; None if they are not texts that are padded at their end."""
    plain = [{name: value for name, value in features.items() if not isinstance(value, Tensor)} for features in columns]
    tensors = [{name: value for name, value in features.items() if isinstance(value, Tensor)} for features in columns]
    alike = all(each == plain[0] for each in plain) and all(set(each) == set(tensors[0]) for each in tensors)
    texts = alike and {"input_ids", "attention_mask"} <= set(tensors[0])
    if not texts or not all(value.ndim == 2 for each in tensors for value in each.values()):
        return None
    if not all(bool(each["attention_mask"][:, 0].all()) for each in tensors):
        return None
    width = max(each["input_ids"].shape[1] for each in tensors)
    filler = {"input_ids": getattr(getattr(model, "tokenizer", None), "pad_token_id", None) or 0}
    return plain[0] | {
        name: torch.cat(
            [pad(each[name], (0, width - each[name].shape[1]), value=filler.get(name, 0)) for each in tensors]
        )
        for name in tensors[0]
    }


def usual_products(model: Any, texts: list[str], others: list[str]) -> tuple[float, float]:
    """Average the dot products of texts with themselves, and with other texts."""
    a, b = (torch.as_tensor(model.encode(some, show_progress_bar=False)).double() for some in (texts, others))
    return float(a.square().sum(1).mean()), float((a @ b.T).mean())
