"""The secant of whole models, against a plain implementation that shares no code."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo
from sentence_transformers.base.modules import Normalize
from torch import nn
from torch.nn import functional as F  # noqa: N812 as everybody calls it

from conftest import explain_in_every_mode, follow
from test_secant_rules import (
    DOUBLE,
    ELEMENTWISE,
    ends,
    secant,
    slow_growth,
    slow_max_secant,
    slow_norm_secant,
    slow_softmax,
    slow_softmax_secant,
)
from whymatch import Explainer
from whymatch.paths.jacobian import Paths
from whymatch.paths.rules import norms
from whymatch.paths.secant import NoSecantError, SecantMap
from whymatch.reading.inputs import Request

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def test_a_function_that_does_not_change():
    paths = Paths(lambda x, _: x.new_ones(len(x), 2), *ends(1, 3, 4), torch.arange(3)[None], 3, room=8)
    pushed = SecantMap(paths).push(torch.arange(3)[:, None])
    assert pushed.values.shape == (1, 3, 2)
    assert not pushed.values.any()
    assert not SecantMap(paths).pull(torch.eye(2, dtype=DOUBLE)[None]).values.any()


# A whole transformer, against a plain implementation: numbers and changes of one group, carried forward together.

TOKENS, WIDTH, HEADS, OUT = 4, 6, 2, 5


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, OUT)
        self.double()
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.7)

    def forward(self, x, fused=True):
        batch = len(x)
        q, k, v = (
            part.view(batch, TOKENS, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        if fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.matmul((torch.matmul(q, k.mT) * (WIDTH // HEADS) ** -0.5).softmax(-1), v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, TOKENS, WIDTH))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(x.max(1)[0])


def slow_transformer(model, x, r, d, share=1.0):
    """What a change d of the input becomes, by the definitions, number by number; and the growth of each norm."""
    growths = []

    def get(tensor):
        return tensor.detach().numpy()

    def linear(layer, values):
        w, b = get(layer.weight), get(layer.bias)
        return [values[0] @ w.T + b, values[1] @ w.T + b, values[2] @ w.T]

    def norm(layer, values):
        w, b = get(layer.weight), get(layer.bias)
        results = [np.empty_like(values[0]) for _ in range(3)]
        for t in range(TOKENS):
            u, v = values[0][t], values[1][t]
            for result, p in zip(results[:2], (u, v), strict=True):
                result[t] = (p - p.mean()) / math.sqrt(p.var() + layer.eps) * w + b
            matrix = slow_norm_secant(u.tolist(), v.tolist(), layer.eps, True, share=share)
            results[2][t] = w * (matrix @ values[2][t])
        growths.append(np.mean([slow_growth(u, v, layer.eps) for u, v in zip(*values[:2], strict=True)]))
        return results

    def product(a, b):
        return [a[0] @ b[0], a[1] @ b[1], a[2] @ (b[0] + b[1]) / 2 + (a[0] + a[1]) / 2 @ b[2]]

    def plus(a, b):
        return [u + v for u, v in zip(a, b, strict=True)]

    state = [x, r, d]
    qkv = linear(model.qkv, norm(model.norms[0], state))
    heads, size = [], WIDTH // HEADS
    for h in range(HEADS):
        q, k, v = ([p[:, n * WIDTH + h * size : n * WIDTH + (h + 1) * size] for p in qkv] for n in range(3))
        scores = [s / math.sqrt(size) for s in product(q, [p.T for p in k])]
        weights = [np.array([slow_softmax(row) for row in s.tolist()]) for s in scores[:2]]
        rows = zip(scores[0].tolist(), scores[1].tolist(), scores[2], strict=True)
        change = [slow_softmax_secant(u, w) @ c for u, w, c in rows]
        heads.append(product([*weights, np.array(change)], v))
    state = plus(state, linear(model.out, [np.hstack([head[n] for head in heads]) for n in range(3)]))
    up = linear(model.up, norm(model.norms[1], state))
    gelu = np.vectorize(ELEMENTWISE["gelu"][1])
    ratio = (gelu(up[0]) - gelu(up[1])) / (up[0] - up[1])
    state = plus(state, linear(model.down, [gelu(up[0]), gelu(up[1]), ratio * up[2]]))
    columns = zip(*(p.T.tolist() for p in state[:2]), strict=True)
    shares = np.array([slow_max_secant(a, b) for a, b in columns])  # (width, tokens)
    pooled = [state[0].max(0), state[1].max(0), (shares * state[2].T).sum(1)]
    return *linear(model.head, pooled), growths


def transformer_paths(inputs=3, room=1000, **options):
    model = Transformer()
    start, end = ends(inputs, TOKENS, WIDTH)
    owner = torch.arange(TOKENS).expand(inputs, TOKENS)

    def tail(x, number):
        return model(x, **options) * (1 + number[:, None])

    return model, Paths(tail, start, end - start, owner, TOKENS, room)


def every_group(paths):
    return torch.arange(paths.groups)[:, None].expand(-1, len(paths))


@pytest.mark.parametrize(("fused", "growth"), [(True, 3.0), (True, 1.1), (False, 3.0)])
def test_a_transformer_equals_a_slow_one(fused, growth, monkeypatch):
    monkeypatch.setattr(norms, "GROWTH", growth)
    model, paths = transformer_paths(fused=fused)
    with torch.no_grad():
        product = SecantMap(paths).push(every_group(paths))
        identity = torch.eye(OUT, dtype=DOUBLE).expand(3, OUT, OUT)
        pulled = SecantMap(paths).pull(identity)
    for i in (0, 2):
        r, delta = paths.start[i].numpy(), paths.delta[i].numpy()
        total = np.log(slow_transformer(model, r + delta, r, delta)[-1]).sum()
        share = min(1, math.log(growth) / total)
        assert (share == 1) == (growth == 3.0)
        for token in range(TOKENS):
            d = np.zeros_like(delta)
            d[token] = delta[token]
            e_x, e_r, change, _ = slow_transformer(model, r + delta, r, d, share)
            np.testing.assert_allclose(product.values[i, token], change * (1 + i), atol=1e-11)
        np.testing.assert_allclose(product.values[i].sum(0), (e_x - e_r) * (1 + i), atol=1e-11)
    np.testing.assert_allclose(pulled.values, product.values.mT, atol=1e-12)
    assert product.missing[0].max() < 1e-12
    assert pulled.missing[0].abs().max() < 1e-12


@pytest.mark.parametrize("room", [2, 5, 30])
def test_pieces_are_put_together(room):
    _, whole = transformer_paths()
    paths = replace(whole, room=room)
    expected, product = (SecantMap(each).push(every_group(each)) for each in (whole, paths))
    torch.testing.assert_close(product.values, expected.values)
    cotangents = ends(3, 7, OUT)[0]
    pulled = SecantMap(paths).pull(cotangents)
    torch.testing.assert_close(pulled.values, torch.einsum("ick,itk->ict", cotangents, expected.values))
    torch.testing.assert_close(pulled.groups[0], pulled.values)
    assert pulled.sizes[0].shape == pulled.totals[0].shape == (1, 3, 7)
    assert product.sizes[0].shape == (1, 3, TOKENS)
    assert product.totals[0].shape == (1, 3)


def test_groups_and_cells_of_no_group():
    _, paths = transformer_paths()
    parts = SecantMap(paths).push(every_group(paths)).values
    owner = torch.tensor([0, -1, 1, 0]).expand(3, -1)
    grouped = replace(paths, owner=owner, groups=2)
    groups = torch.tensor([[0, 1, -2], [1, -2, 0]])  # (tangents, inputs)
    product = SecantMap(grouped).push(groups)
    torch.testing.assert_close(product.values[0, 0], parts[0, 0] + parts[0, 3])
    torch.testing.assert_close(product.values[1, 0], parts[1, 2])
    assert not product.values[2, 0].any()
    identity = torch.eye(OUT, dtype=DOUBLE).expand(3, OUT, OUT)
    pulled = SecantMap(grouped).pull(identity).values
    torch.testing.assert_close(pulled[:, :, 0], parts[:, 0] + parts[:, 3])
    torch.testing.assert_close(pulled[:, :, 1], parts[:, 2])


def test_what_is_missing_is_measured_from_the_known_change():
    _, paths = transformer_paths()
    change = SecantMap(paths).push(every_group(paths)).values.sum(1)
    wrong = change + torch.eye(3, OUT, dtype=DOUBLE)
    product = SecantMap(paths, wrong).push(every_group(paths))
    torch.testing.assert_close(product.missing[0], torch.ones(3, dtype=DOUBLE))
    identity = torch.eye(OUT, dtype=DOUBLE).expand(3, OUT, OUT)
    torch.testing.assert_close(SecantMap(paths, wrong).pull(identity).missing[0], -torch.eye(3, OUT, dtype=DOUBLE))


def test_a_secant_depends_on_how_a_function_is_written():
    """Both are exact; an integrated Jacobian would be the same."""
    x, r = ends(4)
    whole = secant(lambda v: F.gelu(v, approximate="tanh"), x, r)
    written = secant(lambda v: 0.5 * v * (1 + torch.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))), x, r)
    np.testing.assert_allclose(whole, written, atol=1e-12)  # of each number alone: one quotient is possible
    x, r = ends(2, 4)
    left_first = secant(lambda v: v[0] * v[0] * v[1], x, r)
    right_first = secant(lambda v: v[0] * (v[0] * v[1]), x, r)
    assert np.abs(left_first - right_first).max() > 1e-2


# Every architecture.


def zoo_paths(model, layer, tolerance, texts=PAIR):
    explainer = Explainer(model, layer=layer, path="straight", tolerance=tolerance)
    for text in texts:
        yield follow(explainer, text)[0]


# Models that have parts in single precision, whatever they are given: norms, positions or attention.
SINGLE = {
    *("eurobert", "gemma2", "gemma3", "lfm2", "llama", "mamba", "mistral", "modernbert", "mpt", "olmo2", "phi3"),
    *("qwen2", "qwen3", "t5", "t5-relu"),
}


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])  # single and double precision
@pytest.mark.parametrize("layer", [0, 1, -1])
@pytest.mark.parametrize("kind", sorted(zoo.ARCHITECTURES | zoo.RARE))
def test_every_architecture_is_exact(load, kind, layer, tolerance):
    if kind == "longformer" and layer >= 0:
        pytest.skip("its windows overlap in memory; that this is refused is tested below")
    for integral in zoo_paths(load(kind), layer, tolerance):
        paths, change = integral.paths, integral.end - integral.start
        product = SecantMap(paths).push(every_group(paths))
        length = float(change.norm())
        exact = 1e-5 if paths.start.dtype == torch.float32 else 1e-10
        assert float(product.missing[0]) <= exact * length
        rounded = 1e-5 if kind in SINGLE else exact
        assert float((product.values.sum(1) - change).norm()) <= rounded * length
        identity = torch.eye(change.shape[1], dtype=change.dtype)[None]
        pulled = SecantMap(paths, change).pull(identity)
        torch.testing.assert_close(pulled.values, product.values.mT, rtol=0, atol=exact * length)


def test_max_pooling_and_relu_are_exact(tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(zoo.build(tmp_path, "t5-relu", pooling="max")), device="cpu")
    for integral in zoo_paths(model, 0, 1e-3):
        product = SecantMap(integral.paths, integral.end - integral.start).push(every_group(integral.paths))
        assert float(product.missing[0]) <= 1e-5 * float((integral.end - integral.start).norm())


@pytest.mark.parametrize("kind", ["qwen3-moe", "deepseek-v3"])
def test_tokens_that_go_to_other_experts_are_refused(load, kind):
    (integral,) = zoo_paths(load(kind), 1, 1e-3, PAIR[:1])
    with pytest.raises(NoSecantError, match=r"aten\.topk has no exact secant .*; path=\"relay\" and path=\"straight\""):
        SecantMap(integral.paths).push(every_group(integral.paths))


def test_a_batch_equals_one_by_one(load):
    explainer = Explainer(load("mpnet"), layer=0, path="straight", tolerance=1e-6)
    texts = ["The coffee is bad.", "The coffee is not.", "The bread is bad."]
    sources = explainer._method.read([Request(text) for text in texts])
    alike = [source for source in sources if len(source.input) == len(sources[0].input)]
    assert len(alike) > 1
    integral = explainer._method.follow(alike, explainer._method.cut(alike[0].input))
    together = SecantMap(integral.paths).push(every_group(integral.paths)).values
    for i, source in enumerate(alike):
        (alone,) = zoo_paths(explainer.model, 0, 1e-6, [source.side.text])
        expected = SecantMap(alone.paths).push(every_group(alone.paths)).values[0]
        torch.testing.assert_close(together[i], expected, rtol=0, atol=1e-12)


def test_an_encoder_that_cannot_be_followed_exactly_is_refused(load):
    """Longformer's windows of keys are views of one memory that overlap, and it writes into them."""
    message = "the secant misses .* of the embedding, where only rounding may be missing.*path='relay'"
    with pytest.raises(ArithmeticError, match=message):
        Explainer(load("longformer"), layer=0, path="secant").explain(*PAIR)
    assert Explainer(load("longformer"), layer=0).explain(*PAIR).relative_error <= 1e-3


def test_a_real_model_is_exact_from_its_input_on(minilm):
    for integral in zoo_paths(minilm, 0, 1e-3):
        change = integral.end - integral.start
        product = SecantMap(integral.paths, change).push(every_group(integral.paths))
        assert float(product.missing[0]) <= 1e-5 * float(change.norm())


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("kind", ["bert", "mpnet", "t5-relu"])
def test_explanations_by_secants_are_exact_in_every_mode(load, kind, fold):
    # Without divisions, with which texts as short as these are not projected.
    explainer = Explainer(load(kind), layer=0, path="secant", fold_reference=fold, divisions=0)
    results = explain_in_every_mode(explainer, PAIR)
    assert "pairwise" in results["pairwise"].modes
    for why in results.values():
        np.testing.assert_allclose(why.matrix, results["forward"].matrix, atol=1e-5)
        assert why.relative_error <= 1e-5
        assert why.settings.path == "secant"


def test_secants_of_groups_features_and_batches(load):
    explainer = Explainer(load("bert", DOUBLE), layer=0, path="secant")
    tokens = explainer.explain(*PAIR)
    np.testing.assert_allclose(explainer.explain(*PAIR, groups="words").matrix, tokens.words().matrix, atol=1e-10)
    assert explainer.features(*PAIR, 2, 3).sum() == pytest.approx(tokens.matrix[2, 3], abs=1e-10)
    for text, decomposition in zip(PAIR, explainer.decompose(list(PAIR)), strict=True):
        np.testing.assert_allclose(
            decomposition.contributions, explainer.decompose([text])[0].contributions, atol=1e-12
        )
        assert decomposition.error < 1e-6  # the model's own embedding is in single precision


class Hidden(nn.Module):
    """Adds something to embeddings that no operation of PyTorch computes."""

    def forward(self, features):
        embedding = features["sentence_embedding"]
        features["sentence_embedding"] = embedding + torch.from_numpy(np.tanh(embedding.detach().numpy()))
        return features


def test_what_cannot_be_watched_is_missing(load):
    model = load()
    model.append(Hidden())
    with pytest.raises(ArithmeticError, match="the secant misses"):
        Explainer(model, layer=1, path="secant").explain(*PAIR)
    assert Explainer(model).settings.path == "relay"


@pytest.mark.parametrize("dimensions", [None, 7])
def test_secants_with_and_without_room_for_all_texts(load, monkeypatch, dimensions):
    model = load("bert", DOUBLE)
    model.append(Normalize())
    model.truncate_dim = dimensions
    explainer = Explainer(model, layer=1, path="secant")
    together = explainer.decompose([PAIR[0], "This coffee is not good."])
    monkeypatch.setattr(SecantMap, "_together", 1)
    for whole, alone in zip(together, explainer.decompose([PAIR[0], "This coffee is not good."]), strict=True):
        assert whole.contributions.shape[1] == (dimensions or 16)
        np.testing.assert_allclose(whole.contributions, alone.contributions, atol=1e-12)
        np.testing.assert_allclose(whole.reference, alone.reference, atol=1e-12)


def test_a_line_between_the_ends_of_a_secant_needs_no_secant(load):
    texts, positions = ["coffee"], [0.0, 0.5, 1.0]
    values = Explainer(load("qwen3-moe"), layer=1, path="secant").path_values(texts, positions)
    np.testing.assert_allclose(
        values, Explainer(load("qwen3-moe"), layer=1, path="straight").path_values(texts, positions), atol=1e-6
    )


@pytest.mark.parametrize("path", ["relay", "secant"])
def test_special_tokens_of_an_empty_text_hold_nothing_to_share(load, path):
    with torch.inference_mode():
        why = Explainer(load(), layer=1, path=path, special="share").explain("", PAIR[0])
    assert why.a.moved == 0
    assert why.b.moved > 0
    assert why.relative_error <= 1e-3


@pytest.mark.parametrize("path", ["straight", "relay", "secant"])
def test_what_special_tokens_have_is_handed_to_words_and_the_sum_stays(load, path):
    # Unfolded, since special tokens keep their part of the reference.
    options = {"layer": 2, "path": path, "fold_reference": False}
    keep, share = (Explainer(load(), **options, special=special) for special in ("keep", "share"))
    (kept, other), (shared, _) = keep.decompose(PAIR), share.decompose(PAIR)
    special = np.array(kept.side.kinds) == "special"
    np.testing.assert_allclose(shared.contributions.sum(0), kept.contributions.sum(0), atol=1e-4)
    assert np.abs(shared.contributions[special]).max() < 1e-4 < np.abs(kept.contributions[special]).max()
    moved = np.linalg.norm(kept.contributions[special].sum(0)) / np.linalg.norm(kept.embedding)
    assert shared.side.moved == pytest.approx(moved, rel=0.5)
    assert "what special tokens have is shared (" in share.explain(*PAIR).derivation
    with pytest.raises(ValueError, match="do not belong together: special is 'share' for the first and 'keep'"):
        Explainer.pair(shared, other)
