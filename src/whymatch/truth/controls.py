"""Does an explanation depend on what it should depend on, and only on that?"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from whymatch.encoders.adjusted import unshifted
from whymatch.truth.asking import Model, seeded
from whymatch.truth.deletions import Coalitions, model_of
from whymatch.truth.judging import judge
from whymatch.truth.results import Measure, Result, Row, mean_of, spearman
from whymatch.truth.subjects import Attribution, Subject, TextPair, attribute
from whymatch.words import shares, word_spans

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LEVELS = 6  # how many depths of shuffling are tried
CHANGED = 0.5  # a rank correlation below which two matrices are called different
EQUAL = 0.05  # a relative difference below which two matrices are called equal
SAME = 1e-3  # a relative difference of embeddings below which two models are called equal


@dataclass(frozen=True)
class Sanity:
    """Four checks of each pair.

    *shuffled*: with the weights of the upper blocks shuffled, more of them each time, the matrix must change (Adebayo
    et al., 2018); the numbers are rank correlations of its entries with the original's. *equal*: a model that is
    written differently but computes the same must have the same matrix; the number is the relative difference.
    *copied*: a word of the first text that is added to the second contributes more than before, with all that the
    second has, its special tokens too; *copied_first*: the copy is its strongest partner. *random*: a random matrix
    predicts nothing.

    Attributes:
        subject: what is judged.
        model: its model.
        shuffled: the same of models with shuffled weights, by the number of the first block that is shuffled.
        equal: the same of the model that is written differently, or None where it could not be.
        must_equal: whether differences under *equal* count as failures; for ``"secant"`` they do not.
        seed: decides what is shuffled.
    """

    subject: Subject
    model: Model
    shuffled: Mapping[int, Subject] = field(default_factory=dict)
    equal: Subject | None = None
    must_equal: bool = True
    seed: int = 0

    name = "sanity"
    headline = "passed"
    groups = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"seed": self.seed, "changed_below": CHANGED, "equal_below": EQUAL}

    @property
    def measures(self) -> Mapping[str, Measure]:
        names = [*(f"shuffled_from_{first}" for first in self.shuffled), "equal", "copied", "copied_first", "random"]
        return {"passed": Measure({"passes": 1}, {"checks": 1})} | {name: mean_of(name) for name in names}

    def texts(self, item: TextPair) -> TextPair:
        return item

    def measure(self, item: TextPair, attribution: Attribution) -> Row:
        words = word_spans(item[0]), word_spans(item[1])
        if not all(words) or len(words[0]) * len(words[1]) < 3:  # such matrices have no order that could change
            return {"checks": 0, "passes": 0}
        original = attribution.over(*words)
        row: Row = {}
        for first, subject in self.shuffled.items():
            other = _explain(subject, item)
            row[f"shuffled_from_{first}"] = other and spearman(original.ravel(), other.over(*words).ravel())
        if self.equal is not None:
            other = _explain(self.equal, item)
            size = float(np.linalg.norm(original)) or 1.0
            row["equal"] = other and float(np.linalg.norm(other.over(*words) - original)) / size
        row |= self._copied(item, attribution)
        row["random"] = self._random(item)
        passes = []
        if self.shuffled and row[f"shuffled_from_{min(self.shuffled)}"] is not None:
            passes.append(abs(row[f"shuffled_from_{min(self.shuffled)}"]) < CHANGED)
        if self.must_equal and row.get("equal") is not None:
            passes.append(row["equal"] < EQUAL)
        if row.get("copied") is not None:
            passes.append(row["copied"] == 1)
        return {**row, "checks": len(passes), "passes": sum(passes)}

    def _copied(self, item: TextPair, original: Attribution) -> Row:
        """Add a word of the first text to the second, and see what becomes of it: 1 is yes, 0 is no."""
        a, b = item
        there = {b[low:high].casefold() for low, high in word_spans(b)}
        words = word_spans(a)
        new = [i for i, (low, high) in enumerate(words) if high - low > 3 and a[low:high].casefold() not in there]
        if not new:
            return {}
        number = max(new, key=lambda i: words[i][1] - words[i][0])
        longer = f"{b} {a[words[number][0] : words[number][1]]}"
        other = _explain(self.subject, (a, longer))
        if other is None:
            return {}
        before, after = (float(shares(each.spans_a, words)[number] @ each.matrix.sum(1)) for each in (original, other))
        matrix = other.over(words, word_spans(longer))
        return {
            "copied": float(after > before),
            "copied_first": float(int(matrix[number].argmax()) == matrix.shape[1] - 1),
        }

    def _random(self, item: TextPair) -> float | None:
        words = word_spans(item[0]), word_spans(item[1])
        matrix = seeded(self.seed, item).normal(size=(len(words[0]), len(words[1])))
        correlation = Coalitions(self.model, seed=self.seed).measure(item, Attribution(matrix, *words)).get("spearman")
        return None if correlation is None else float(correlation)


def _explain(subject: Subject, pair: TextPair) -> Attribution | None:
    """Explain a pair; None where the subject cannot."""
    try:
        return attribute(subject, [pair])[0]
    except ArithmeticError:
        return None


def blocks_of(model: Model, twin: Any) -> nn.Module:
    """Find the list of blocks in a copy of a model."""
    with torch.no_grad():
        tower = model.encoder.tower(model.encoder.read(["a"], model.options[0])[0])
    blocks: nn.Module = unshifted(twin).get_submodule(tower.blocks)
    return blocks


def shuffle_blocks(model: Model, first: int, seed: int = 0) -> SentenceTransformer:
    """Return a copy of a model in which the weights of every block from the ``first`` on are shuffled in themselves."""
    twin = copy.deepcopy(model.encoder.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for block in list(blocks_of(model, twin).children())[first:]:
            for weight in block.parameters():
                order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
                weight.copy_(weight.flatten()[order].view_as(weight))
    return twin


class WrittenGelu(nn.Module):
    """GELU as its formula says it, a product; the library has it as one operation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 * (1 + torch.erf(x / math.sqrt(2))))


class WrittenNorm(nn.Module):
    """LayerNorm as its formula says it; the library has it as one operation."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + self.eps) * self.weight
        return scaled if self.bias is None else scaled + self.bias


def rewrite(model: Model, texts: Sequence[str], seed: int = 0) -> SentenceTransformer | None:
    """Return a copy of a model that computes the same in another way.

    The hidden neurons of each block are in another order, and GELU and LayerNorm are written out.

    Returns:
        The copy, or None if nothing could be changed, or if it does not give these texts the same embeddings.
    """
    twin = copy.deepcopy(model.encoder.model)
    generator = torch.Generator().manual_seed(seed)
    changed = False
    for block in blocks_of(model, twin).children():
        changed |= _permute_neurons(block, generator)
        for module in list(block.modules()):
            for name, child in list(module.named_children()):
                exact = getattr(child, "approximate", "none") == "none"
                if exact and type(child).__name__ in ("GELUActivation", "GELU"):
                    setattr(module, name, WrittenGelu())
                    changed = True
                elif isinstance(child, nn.LayerNorm) and child.elementwise_affine and len(child.normalized_shape) == 1:
                    setattr(module, name, WrittenNorm(child))
                    changed = True
    other = Model(twin, model.similarity, model.name)
    before, after = model.embed(texts), other.embed(texts)
    same = np.linalg.norm(after - before, axis=1) <= SAME * np.linalg.norm(before, axis=1)
    return twin if changed and same.all() else None


def _permute_neurons(block: nn.Module, generator: torch.Generator) -> bool:
    """Put the hidden neurons of a block in another order, which changes nothing that it computes."""
    linears = [module for module in block.modules() if isinstance(module, nn.Linear)]
    downs = [each for each in linears if each.in_features > each.out_features]
    ups = [each for each in linears if downs and each.out_features == downs[0].in_features]
    if len(downs) != 1 or not ups:
        return False
    order = torch.randperm(downs[0].in_features, generator=generator).to(downs[0].weight.device)
    with torch.no_grad():
        downs[0].weight.copy_(downs[0].weight[:, order])
        for up in ups:
            up.weight.copy_(up.weight[order])
            if up.bias is not None:
                up.bias.copy_(up.bias[order])
    return True


class Twins:
    """Changed copies of a model, made when they are first needed, and shared by all that is judged.

    Args:
        model: the model.
        texts: some texts, to check that the copy which is written differently gives the same embeddings.
        seed: decides what is shuffled.
    """

    def __init__(self, model: Model, texts: Sequence[str], seed: int = 0) -> None:
        self.model, self.seed, self._texts = model, seed, texts

    @cached_property
    def shuffled(self) -> dict[int, SentenceTransformer]:
        """Models with shuffled weights, by the number of the first block that is shuffled."""
        count = self.model.encoder.num_layers
        firsts = sorted({int(first) for first in np.linspace(0, count - 1, min(LEVELS, count)).round()}, reverse=True)
        return {first: shuffle_blocks(self.model, first, self.seed) for first in firsts}

    @cached_property
    def rewritten(self) -> SentenceTransformer | None:
        """The model that is written differently; see :func:`rewrite`."""
        return rewrite(self.model, self._texts, self.seed)

    def sanity(self, subject: Subject, rebuild: Callable[[SentenceTransformer], Subject] | None) -> Sanity:
        """Prepare the checks of a subject; without ``rebuild``, those that need no other model."""
        if rebuild is None or not self.model.has_layers:
            return Sanity(subject, self.model, seed=self.seed)
        shuffled = {first: rebuild(twin) for first, twin in self.shuffled.items()}
        equal = None if self.rewritten is None else rebuild(self.rewritten)
        path = getattr(getattr(subject, "settings", None), "path", "straight")
        return Sanity(subject, self.model, shuffled, equal, path != "secant", self.seed)


def sanity(
    explainer: Subject,
    pairs: Sequence[TextPair],
    *,
    model: Model | SentenceTransformer | None = None,
    rebuild: Callable[[SentenceTransformer], Subject] | None = None,
    seed: int = 0,
) -> Result:
    """Test whether an explanation changes with the model's weights, and not with how the model is written.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        pairs: pairs of texts.
        model: the model; None is the explainer's own.
        rebuild: makes the same explainer of another model; None is the explainer's own ``with_model``. Of a function
            without it, and of models without layers, only the checks that need no other model are made.
        seed: decides what is shuffled.

    Returns:
        ``value`` is the share of checks that were passed; see :class:`Sanity`.
    """
    asked = model_of(explainer, model)
    build = rebuild or getattr(explainer, "with_model", None)
    items = list(pairs)
    twins = Twins(asked, [text for pair in items[:4] for text in pair], seed)
    return judge(twins.sanity(explainer, build), explainer, items)
