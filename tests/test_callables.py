"""Any differentiable encoder, as a bare function."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from whymatch import Explainer, ToleranceWarning, decompose_callable

EXAMPLE = Path(__file__).parents[1] / "examples/siamese_cnn.py"


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    return (
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, 6))
        .double()
        .eval()
    )


def quarters():
    row = torch.arange(8) // 4
    return (2 * row[:, None] + row[None]).expand(1, 8, 8)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_cnn_on_pictures_is_exact(cnn, similarity, fold):
    torch.manual_seed(1)
    a, b = torch.rand(2, 1, 8, 8).double()
    options = {"similarity": similarity, "fold_reference": fold, "tolerance": 1e-9}
    left, right = (decompose_callable(cnn, x, torch.zeros_like(x), quarters(), **options) for x in (a, b))
    assert left.contributions.shape == (4, 6)
    assert left.error < 1e-9
    why = Explainer.pair(left, right)
    left, right = cnn(a[None])[0].detach(), cnn(b[None])[0].detach()
    expected = left @ right if similarity == "dot" else torch.cosine_similarity(left, right, dim=0)
    assert why.score == pytest.approx(float(expected))
    assert why.relative_error < 1e-8
    assert why.unit == "groups"


@pytest.mark.parametrize("path", ["straight", "relay", "secant"])
def test_every_path_is_exact_through_a_list_of_functions(cnn, path):
    torch.manual_seed(1)
    x = torch.rand(1, 8, 8).double()
    dec = decompose_callable(list(cnn), x, torch.zeros_like(x), quarters(), path=path, tolerance=1e-9, name="cnn")
    assert dec.settings.path == path
    assert dec.error < 1e-9
    np.testing.assert_allclose(dec.contributions.sum(0), cnn(x[None])[0].detach(), atol=1e-9)
    if path != "relay":  # for the others, a list is one function
        whole = decompose_callable(cnn, x, torch.zeros_like(x), quarters(), path=path, tolerance=1e-9)
        np.testing.assert_allclose(whole.contributions, dec.contributions, atol=1e-9)


def test_a_relay_goes_from_function_to_function():
    """Its contributions, written out for two functions of two numbers."""
    first, second = (lambda v: v * v), (lambda v: torch.stack([v[:, 0] * v[:, 1], v[:, 0]], 1))
    x, r = torch.tensor([3.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double()
    dec = decompose_callable([first, second], x, r, path="relay", fold_reference=False, tolerance=1e-10)
    squares, ones = x * x, r * r
    change = squares - ones  # of the first function, each number by itself
    middle = (squares + ones) / 2  # the mean of the product's derivative
    expected = [[change[0] * middle[1], change[0]], [change[1] * middle[0], 0]]
    np.testing.assert_allclose(dec.contributions, np.array(expected, float), atol=1e-9)


def test_the_contributions_are_integrated_gradients(cnn):
    """Each group's, against a sum over many right endpoints that is written out."""
    torch.manual_seed(1)
    x = torch.rand(1, 8, 8).double()
    dec = decompose_callable(cnn, x, torch.zeros_like(x), quarters(), fold_reference=False, tolerance=1e-10)
    total = torch.zeros(6, 1, 8, 8).double()
    for n in range(400):
        total += torch.autograd.functional.jacobian(lambda v: cnn(v[None])[0], x * (n + 0.5) / 400) / 400
    expected = torch.stack([((total * x) * (quarters() == g)).sum((1, 2, 3)) for g in range(4)])
    np.testing.assert_allclose(dec.contributions, expected, atol=1e-6)


def test_without_groups_each_entry_of_the_first_axis_is_one():
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    dec = decompose_callable(tower, torch.randn(5), torch.zeros(5), labels=list("abcde"))
    assert dec.tokens == tuple("abcde")
    assert dec.error < 1e-3


def test_fused_attention_is_taken_apart():
    """PyTorch's has no forward-mode derivative, and its transformer layer a fast path without any."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True).eval()
    head = nn.Linear(8, 12).eval()
    x = torch.randn(3, 8)
    dec = decompose_callable(lambda points: head(layer(points).mean(1)), x, torch.randn(3, 8))
    assert dec.mode == "forward"
    assert dec.error < 1e-3
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_missed_tolerance_is_said():
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30)).eval()
    with pytest.warns(ToleranceWarning, match="1 of 1 inputs miss tolerance=1e-05"):
        decompose_callable(tower, torch.randn(20), torch.randn(20), tolerance=1e-5)


def test_embeddings_of_different_sizes_do_not_pair():
    left = decompose_callable(nn.Linear(4, 3).eval(), torch.randn(4), torch.zeros(4), name="x")
    right = decompose_callable(nn.Linear(4, 2).eval(), torch.randn(4), torch.zeros(4), name="x")
    with pytest.raises(ValueError, match="their embeddings have 3 and 2 dimensions"):
        Explainer.pair(left, right)


def test_the_explainers_pair_takes_them(load):
    tower = nn.Linear(4, 3).eval()
    left, right = (decompose_callable(tower, torch.randn(4), torch.zeros(4)) for _ in range(2))
    explainer = Explainer(load(), layer=-1)
    assert explainer.pair(left, right).error < 1e-5
    with pytest.raises(ValueError, match="do not belong together: model is 'Linear at 0x"):
        explainer.pair(left, explainer.decompose(["coffee"])[0])


def test_an_encoder_of_the_explainer_gives_the_same_as_a_callable(load):
    """The same mathematics, with the model's blocks called by hand."""
    model = load()
    bert = model[0].auto_model.double().eval()
    ids = model.tokenizer("bad coffee", return_tensors="pt")["input_ids"]
    reference = ids.clone()
    reference[:, 1:-1] = model.tokenizer.pad_token_id
    bert.config._attn_implementation = "eager"

    def encode(x):
        for layer in bert.encoder.layer:
            x = layer(x)
        return x.mean(1)

    with torch.no_grad():
        x, r = bert.embeddings(ids)[0], bert.embeddings(reference)[0]
    dec = decompose_callable(encode, x, r, tolerance=1e-8)
    (own,) = Explainer(model, layer=0, path="straight", tolerance=1e-8).decompose(["bad coffee"])
    scale = np.linalg.norm(dec.embedding)
    np.testing.assert_allclose(dec.contributions / scale, own.contributions, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"x": torch.ones(3, dtype=torch.long)},
            TypeError,
            "x must be a tensor of float32 or float64, not torch.int64",
        ),
        ({"x": [1.0]}, TypeError, "not list"),
        ({"reference": torch.zeros(2)}, ValueError, r"must have the shape of x, \(3,\), not \(2,\)"),
        ({"groups": torch.tensor([0, 2, 2])}, ValueError, r"numbered from 0 without gaps .* not \[0, 2\]"),
        ({"groups": torch.tensor([0, 0, -1])}, ValueError, "1 numbers of x differ from the reference but belong to no"),
        ({"groups": torch.zeros(4, dtype=torch.long)}, ValueError, "one for each entry of x's first axes"),
        ({"labels": ["a"]}, ValueError, "1 labels for 3 groups"),
        ({"tolerance": 1e-12}, ValueError, "tolerance=1e-12 cannot be taken"),
        ({"similarity": "euclidean"}, ValueError, "similarity='euclidean' is not known"),
        ({"rule": "simpson"}, ValueError, "rule='simpson' is not known"),
        ({"encode": lambda x: x.sum(1)}, ValueError, r"encode must give \(points, dimensions\).* it gives \(1,\)"),
        ({"encode": nn.Dropout()}, ValueError, "Dropout is in training mode"),
        ({"encode": []}, TypeError, r"encode is \[\]; give a function, or a list of functions"),
        ({"path": "relay-2"}, ValueError, "path='relay-2' is not known; choose 'straight', 'relay' or 'secant'"),
        ({"path": "secant", "steps": 5}, ValueError, "steps=5 is a number of nodes, and path='secant' has none"),
    ],
)
def test_bad_input_is_named(change, error, message):
    given = {"encode": lambda x: x, "x": torch.ones(3), "reference": torch.zeros(3)} | change
    with pytest.raises(error, match=message):
        decompose_callable(**given)


def test_the_example_runs_and_says_something(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "error" in out
