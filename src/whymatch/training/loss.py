"""The objectives: what the score of a pair should be, and how far it is from that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, mse_loss


class PairLoss(nn.Module):
    """The mean squared error of a pair's cosine, or of its scaled dot product, against a score from 0 to 1.

    Args:
        model: the SentenceTransformer that is trained.
        objective: ``"cosine"`` or ``"dot"``.
        scale: what a dot product is multiplied with. It has no influence on how the model ranks, only on how long its
            embeddings must become: those of most models are not of length 1.
        learned: whether the scale is trained too.
        own: the weight of a text's score with itself, which should be 1. A cosine is that by nature; it is what a dot
            product lacks where texts differ in length only.
    """

    def __init__(
        self, model: Any, objective: str, scale: float = 1.0, *, learned: bool = False, own: float = 0.0
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.own = own
        # Its logarithm, so that it stays positive.
        self.log_scale = nn.Parameter(torch.tensor(scale).log().to(model.device), requires_grad=learned)

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor) -> Tensor:
        a, b = (self.model(features)["sentence_embedding"] for features in sentence_features)
        wanted = labels.to(a.dtype).view(-1)
        if self.objective == "cosine":
            return mse_loss(cosine_similarity(a, b), wanted)
        scale = self.log_scale.exp()
        loss = mse_loss(scale * (a * b).sum(1), wanted)
        if self.own:
            alone = scale * torch.cat([a, b]).square().sum(1)
            loss = loss + self.own * mse_loss(alone, torch.ones_like(alone))
        return loss


def usual_scale(model: Any, texts: list[str]) -> float:
    """The scale with which a text's dot product with itself is 1, on average, before training."""
    embeddings = torch.as_tensor(model.encode(texts, show_progress_bar=False))
    return 1 / max(float(embeddings.double().square().sum(1).mean()), 1e-12)
