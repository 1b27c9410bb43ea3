"""Decompose any differentiable encoder: a function from tensors to embeddings, with no tokenizer and no model name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from whymatch.method import decompose
from whymatch.paths.integrate import Integral
from whymatch.paths.jacobian import Paths, plain_attention
from whymatch.quadrature import RuleName
from whymatch.reading.inputs import Source
from whymatch.reading.sides import Side
from whymatch.results.decomposition import Decomposition
from whymatch.settings import check_settings, warn_missed


def decompose_callable(
    encode: Callable[[Tensor], Tensor] | Sequence[Callable[[Tensor], Tensor]],
    x: Tensor,
    reference: Tensor,
    groups: Tensor | None = None,
    *,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    fold_reference: bool = True,
    similarity: Literal["cosine", "dot"] = "cosine",
    path: Literal["straight", "relay", "secant"] = "straight",
    rule: RuleName = "gauss",
    steps: int | None = None,
    tolerance: float = 1e-3,
    batch_size: int = 256,
) -> Decomposition:
    """Write the embedding of one input as a sum over groups of its numbers; :meth:`Explainer.pair` combines two.

    Args:
        encode: maps a batch (points, *shape) to embeddings (points, dimensions), each computed from its own point only.
            It may be a list of functions, each of which takes what the one before it gives.
        x: one input of any shape, without a batch axis.
        reference: what stands for nothing, of the same shape.
        groups: the number of the group of each cell, from 0; −1 for cells that belong to none, which must not differ
            from the reference. Its shape is that of x, or of x's first axes. None makes each entry of the first axis
            a group.
        labels: what to call the groups.
        name: what to call the encoder; decompositions with the same name can be paired. None uses the object itself.
        path: as for :class:`Explainer`. A relay goes from function to function of a list.
        batch_size: how many plain passes may be held at once.

    The other settings are those of :class:`Explainer`. The derivatives have x's own precision.
    """
    parts = [encode] if callable(encode) else list(encode)
    if not parts or not all(map(callable, parts)):
        raise TypeError(f"encode is {encode!r:.80}; give a function, or a list of functions")
    if path not in ("straight", "relay", "secant"):
        raise ValueError(f"path={path!r} is not known; choose 'straight', 'relay' or 'secant'")
    settings = check_settings(
        model=name or f"{getattr(encode, '__qualname__', type(encode).__name__)} at {id(encode):#x}",
        path=path,
        reference="given",
        fold_reference=fold_reference,
        similarity=similarity,
        rule=rule,
        steps=steps,
        tolerance=tolerance,
        least_tolerance=1e-5 if _check_dtype(x) == torch.float32 else 8 * torch.finfo(torch.float64).eps,
    )
    for part in parts:
        if isinstance(part, nn.Module) and part.training:
            raise ValueError(
                f"{type(part).__name__} is in training mode, where dropout and batches change it: call eval()"
            )
    if not isinstance(reference, Tensor) or reference.shape != x.shape:
        shape = tuple(reference.shape) if isinstance(reference, Tensor) else type(reference).__name__
        raise ValueError(f"the reference must have the shape of x, {tuple(x.shape)}, not {shape}")
    x, reference = x.detach(), reference.detach().to(x)
    if groups is None and x.ndim:
        groups = torch.arange(x.shape[0])
    owner, count = _check_groups(groups, x, reference)
    if labels is not None and len(labels) != count:
        raise ValueError(f"{len(labels)} labels for {count} groups; give one for each, or none")

    def follow(steps: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor, Tensor], Tensor]:
        def tail(points: Tensor, _: Tensor) -> Tensor:
            with plain_attention():
                for step in steps:
                    points = step(points)
            return points

        return tail

    tails = [follow([part]) for part in parts] if path == "relay" else [follow(parts)]
    with torch.no_grad():
        embedding = x[None]
        for part in parts:
            embedding = part(embedding)
    if not isinstance(embedding, Tensor) or embedding.ndim != 2 or len(embedding) != 1:
        shape = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
        raise ValueError(
            f"encode must give (points, dimensions); for one point of shape {tuple(x.shape)} it gives {shape}"
        )
    paths = Paths(
        tail=tails[0],
        start=reference[None],
        delta=(x - reference)[None],
        owner=owner[None],
        groups=count,
        room=max(2, batch_size),
        depth=4,
    )
    cells = torch.bincount(owner[owner >= 0].flatten(), minlength=count).cpu().double().numpy()
    side = Side(
        text=settings.model,
        tokens=tuple(map(str, range(count) if labels is None else labels)),
        offsets=((0, 0),) * count,
        kinds=("group",) * count,
        unit="group",
    )
    source = Source(side, cells / cells.sum(), np.asarray(embedding.detach().cpu())[0])
    (decomposition,) = decompose(Integral(paths, tails, settings, [settings.model]), [source], settings)
    warn_missed([(decomposition.error, decomposition.nodes)], settings.text_tolerance, settings, "inputs")
    return decomposition


def _check_dtype(x: Any) -> torch.dtype:
    if not isinstance(x, Tensor) or x.dtype not in (torch.float32, torch.float64):
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"x must be a tensor of float32 or float64, not {kind}: derivatives have its precision")
    return x.dtype


def _check_groups(groups: Any, x: Tensor, reference: Tensor) -> tuple[Tensor, int]:
    groups = torch.as_tensor(0 if groups is None else groups).to(x.device)
    if groups.is_floating_point() or groups.shape != x.shape[: groups.ndim] or groups.ndim == 0 or groups.numel() == 0:
        raise ValueError(
            f"groups must be integers, one for each entry of x's first axes; x is {tuple(x.shape)}, groups are "
            f"{groups.dtype} {tuple(groups.shape)}"
        )
    count = int(groups.max()) + 1
    if count < 1 or int(groups.min()) < -1 or len(torch.unique(groups[groups >= 0])) != count:
        raise ValueError(f"groups are numbered from 0 without gaps (−1 is none), not {groups.unique().tolist()[:20]}")
    loose = (groups < 0).view(*groups.shape, *[1] * (x.ndim - groups.ndim)) & (x != reference)
    if bool(loose.any()):
        raise ValueError(
            f"{int(loose.sum())} numbers of x differ from the reference but belong to no group (−1): the groups could "
            "not sum to the embedding. Give them a group, or set the reference there to x"
        )
    return groups.long(), count
