"""The objectives: what the score of a pair should be, and how far it is from that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss, pad

from whymatch.training.shift import shift_of

TOGETHER = 8  # texts of about one length that run together: more of them are padded more


class PairLoss(nn.Module):
    """The mean squared error of a pair's cosine, or of its scaled dot product, against a score from 0 to 1.

    Args:
        model: the SentenceTransformer that is trained.
        objective: ``"cosine"`` or ``"dot"``.
        scale: what a dot product is multiplied with. It has no influence on how the model ranks, only on how long its
            embeddings must become: those of most models are not of length 1.
        zero: the dot product that stands for the score 0. It has no influence on ranks either: shifted embeddings have
            a part in common, which the products of all texts then need not lose.
        learned: whether the scale is trained too.
        own: the weight of a text's score with itself, which should be 1. A cosine is that by nature; it is what a dot
            product lacks where texts differ in length only.
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
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.zero = zero
        self.own = own
        # Its logarithm, so that it stays positive.
        self.log_scale = nn.Parameter(torch.tensor(scale).log().to(model.device), requires_grad=learned)

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor) -> Tensor:
        a, b = embed(self.model, list(sentence_features))
        wanted = labels.to(a.dtype).view(-1)
        if self.objective == "cosine":
            return mse_loss(cosine_similarity(a, b), wanted)
        scale = self.log_scale.exp()
        loss = mse_loss(scale * ((a * b).sum(1) - self.zero), wanted)
        if self.own:
            alone = scale * (torch.cat([a, b]).square().sum(1) - self.zero)
            loss = loss + self.own * mse_loss(alone, torch.ones_like(alone))
        return loss


def embed(model: Any, columns: Sequence[dict[str, Any]]) -> list[Tensor]:
    """The embeddings of every column of a batch.

    Texts of about one length run together, and so are padded little; an adjusted model's references run among them,
    each once.
    """
    merged = _merged(model, columns)
    if merged is None:
        return [model(dict(features))["sentence_embedding"] for features in columns]
    ends = list(accumulate(len(features["input_ids"]) for features in columns))
    shift = shift_of(model)
    if shift is None or len(list(model.children())) > 1:
        embeddings = _by_length(lambda features: model(features)["sentence_embedding"], merged)
    else:
        both, number = shift.with_references(merged)
        found = _by_length(shift.unshifted, both)
        embeddings = found[: ends[-1]] - found[number]
    return list(embeddings.tensor_split(ends[:-1]))


def _by_length(run: Callable[[dict[str, Any]], Tensor], features: dict[str, Any]) -> Tensor:
    lengths = features["attention_mask"].sum(1)
    order = lengths.argsort()
    # Where there is much to do at once, one large batch is faster than several that are padded less.
    together = TOGETHER if lengths.device.type == "cpu" else len(order)
    found = []
    for rows in order.tensor_split(-(-len(order) // together)):
        longest = int(lengths[rows].max())
        found.append(run({n: v[rows, :longest] if isinstance(v, Tensor) else v for n, v in features.items()}))
    return torch.cat(found)[order.argsort()]


def _merged(model: Any, columns: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The texts of all columns as one batch; None where they are no texts that are padded at their end."""
    plain = [{name: value for name, value in features.items() if not isinstance(value, Tensor)} for features in columns]
    tensors = [{name: value for name, value in features.items() if isinstance(value, Tensor)} for features in columns]
    alike = all(one == plain[0] for one in plain) and all(set(one) == set(tensors[0]) for one in tensors)
    texts = alike and {"input_ids", "attention_mask"} <= set(tensors[0])
    if not texts or not all(value.ndim == 2 for one in tensors for value in one.values()):
        return None
    if not all(bool(one["attention_mask"][:, 0].all()) for one in tensors):
        return None
    width = max(one["input_ids"].shape[1] for one in tensors)
    filler = {"input_ids": getattr(getattr(model, "tokenizer", None), "pad_token_id", None) or 0}
    return plain[0] | {
        name: torch.cat([pad(one[name], (0, width - one[name].shape[1]), value=filler.get(name, 0)) for one in tensors])
        for name in tensors[0]
    }


def usual_products(model: Any, texts: list[str], others: list[str]) -> tuple[float, float]:
    """The dot product of a text with itself, and with others, on average, before training."""
    a, b = (torch.as_tensor(model.encode(some, show_progress_bar=False)).double() for some in (texts, others))
    return float(a.square().sum(1).mean()), float((a @ b.T).mean())
