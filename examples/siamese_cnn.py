"""Why do two pictures match? A Siamese CNN, trained here in seconds, explained patch by patch.

    python examples/siamese_cnn.py

Each picture has one shape (a cross or a square) in one of nine places, and noise. Two pictures match if the shape
is the same, wherever it is. The explanation should therefore put the score on the two patches that hold the shapes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from whymatch import Explainer, decompose_callable

SIZE, PATCH = 24, 8
GRID = SIZE // PATCH


def draw(shape: int, place: int, noise: Tensor) -> Tensor:
    """A picture (1, 24, 24) with a cross or a square in one of nine patches."""
    picture = 0.1 * noise
    top, left = PATCH * (place // GRID) + 1, PATCH * (place % GRID) + 1
    if shape == 0:
        picture[0, top + 2 : top + 4, left : left + 6] += 1
        picture[0, top : top + 6, left + 2 : left + 4] += 1
    else:
        picture[0, top : top + 6, left : left + 6] += 1
        picture[0, top + 2 : top + 4, left + 2 : left + 4] -= 1
    return picture


def make(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    shapes = torch.randint(2, (count,), generator=generator)
    places = torch.randint(GRID**2, (count,), generator=generator)
    noise = torch.randn(count, 1, SIZE, SIZE, generator=generator)
    pictures = torch.stack([draw(int(s), int(p), n) for s, p, n in zip(shapes, places, noise, strict=True)])
    return pictures, shapes, places


class Tower(nn.Module):
    """Smooth activations and average pooling: few nodes integrate them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.GELU(), nn.AvgPool2d(2),
            nn.Conv2d(8, 16, 5, padding=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(16, 8),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def train(tower: Tower, generator: torch.Generator, steps: int = 200) -> float:
    """Pairs of the same shape should have the cosine 1, others −1."""
    optimizer = torch.optim.Adam(tower.parameters(), lr=1e-2)
    for _ in range(steps):
        pictures, shapes, _ = make(64, generator)
        embeddings = nn.functional.normalize(tower(pictures))
        wanted = (shapes[:, None] == shapes[None]).float() * 2 - 1
        loss = nn.functional.mse_loss(embeddings @ embeddings.T, wanted)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss.detach())


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    tower = Tower()
    loss = train(tower, generator)
    tower.eval()
    patch = torch.arange(SIZE) // PATCH
    groups = (GRID * patch[:, None] + patch[None]).expand(1, SIZE, SIZE)
    labels = [f"{i // GRID},{i % GRID}" for i in range(GRID**2)]
    pictures, shapes, places = make(2, generator)
    while shapes[0] != shapes[1] or places[0] == places[1]:
        pictures, shapes, places = make(2, generator)
    blank = torch.zeros_like(pictures[0])
    a, b = (decompose_callable(tower, x, blank, groups, labels=labels, fold_reference=False) for x in pictures)
    why = Explainer.pair(a, b)
    print(f"trained to a loss of {loss:.3f}")
    print(f"score {why.score:.3f}, error {why.error:.1e}, nodes {why.nodes}")
    print(f"the shapes are in {labels[int(places[0])]} and {labels[int(places[1])]}; the strongest pairs of patches:")
    for pair in why.top(3):
        print(f"  {pair.token_a} × {pair.token_b}  {pair.value:+.3f}")
    strongest = why.top(1)[0]
    assert (strongest.i, strongest.j) == (int(places[0]), int(places[1]))
    assert np.isclose(why.attributed, why.score, atol=1e-3)


if __name__ == "__main__":
    main()
