from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from whymatch import Explainer, ToleranceWarning
from whymatch.explainer import PAIRS_TOGETHER
from whymatch.inputs import Reading
from whymatch.preparation import TEXTS_TOGETHER, Request

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")
LAYERS = range(4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_papers_algorithm_step_by_step(load, kind, layer):
    """With the same rule and steps the engine and the paper's own algorithm do the same sum."""
    model = load(kind, torch.float64)
    expected = oracle.attributions(model, *PAIR, layer, steps=50)
    why = Explainer(model, layer=layer, rule="right", steps=50, fold_reference=False).explain(*PAIR)
    np.testing.assert_allclose(why.matrix, expected["matrix"], atol=1e-12)
    np.testing.assert_allclose(why.effects_a, expected["effects_a"], atol=1e-12)
    np.testing.assert_allclose(why.effects_b, expected["effects_b"], atol=1e-12)
    assert why.constant == pytest.approx(float(expected["constant"]), abs=1e-12)
    assert why.score == pytest.approx(float(expected["score"]), abs=1e-12)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("layer", LAYERS)
def test_what_the_papers_algorithm_converges_to(load, kind, layer):
    """The right rule's error halves with doubled steps, towards the Gauss result."""
    model = load(kind, torch.float64)
    why = Explainer(model, layer=layer, fold_reference=False, tolerance=1e-9).explain(*PAIR)
    distance = [
        abs(oracle.attributions(model, *PAIR, layer, steps)["matrix"].numpy() - why.matrix).max()
        for steps in (200, 800)
    ]
    if layer == 3:
        assert max(distance) < 1e-12  # the mean of the output is linear
    else:
        assert distance[1] == pytest.approx(distance[0] / 4, rel=0.1)
        assert distance[1] < 1e-2


@pytest.mark.parametrize("rule", ["gauss", "midpoint"])
def test_every_rule_converges_to_the_same_matrix(load, rule):
    model = load("bert", torch.float64)
    right = Explainer(model, rule="right", steps=2000).explain(*PAIR).matrix
    fine = Explainer(model, rule=rule, steps=200).explain(*PAIR).matrix
    assert abs(right - fine).max() < 4e-3


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "dot"])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("similarity", [None, "cosine", "dot"])
def test_the_sum_is_the_score(load, kind, fold, similarity):
    model = load(kind)
    for layer in LAYERS:
        explainer = Explainer(model, layer=layer, fold_reference=fold, similarity=similarity)
        why = explainer.explain(*PAIR)
        a, b = model.encode(list(PAIR), convert_to_tensor=True)
        name = similarity or model.similarity_fn_name
        own = torch.nn.functional.cosine_similarity(a, b, dim=0) if name == "cosine" else a @ b
        assert why.score == pytest.approx(float(own), rel=1e-6, abs=1e-6)
        if similarity is None:
            assert why.score == pytest.approx(float(model.similarity(a, b)), rel=1e-6, abs=1e-6)
        assert why.relative_error <= 1e-3
        assert why.norms == pytest.approx(1 if name == "cosine" else float(a.norm() * b.norm()))
        if fold:
            assert why.matrix.sum() == pytest.approx(why.score, abs=1e-3 * why.norms)
            assert why.constant == 0
            assert not why.effects_a.any()
            assert not why.effects_b.any()
        else:
            assert abs(why.constant) > 1e-3
        tight = Explainer(model, layer=layer, fold_reference=fold, similarity=similarity, tolerance=1e-6)
        assert tight.explain(*PAIR).relative_error <= 1e-6


@pytest.mark.parametrize("reference", ["unk", "mask"])
def test_other_references_are_exact_too(load, reference):
    why = Explainer(load("roberta"), layer=0, reference=reference).explain(*PAIR)
    assert why.relative_error <= 1e-3
    assert why.reference == reference


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_forward_reverse_and_pairwise_agree(load, layer, fold):
    model = load("bert", torch.float64)
    explainer = Explainer(model, layer=layer, fold_reference=fold, tolerance=1e-8)
    prepared = explainer._preparation.prepare([Request(text, Reading(), None) for text in PAIR])
    results = {}
    for mode in ("forward", "reverse"):
        decs = {dec.text: dec for _, bucket in prepared.buckets() for dec in bucket.decompose(mode=mode)}
        assert {dec.mode for dec in decs.values()} == {mode}
        results[mode] = explainer.pair(decs[PAIR[0]], decs[PAIR[1]])
    results["pairwise"] = explainer.explain(*PAIR)
    assert results["pairwise"].modes == ("forward", "pairwise")
    results["turned"] = explainer.explain(*PAIR[::-1])
    assert results["turned"].modes == ("pairwise", "forward")
    for name, why in results.items():
        turn = name == "turned"
        np.testing.assert_allclose(why.matrix.T if turn else why.matrix, results["forward"].matrix, atol=1e-7)
        effects = (why.effects_b, why.effects_a) if turn else (why.effects_a, why.effects_b)
        np.testing.assert_allclose(effects[0], results["forward"].effects_a, atol=1e-7)
        np.testing.assert_allclose(effects[1], results["forward"].effects_b, atol=1e-7)
        assert why.relative_error <= 1e-8


def test_a_text_against_itself_is_symmetric(load):
    why = Explainer(load(), layer=1).explain(PAIR[0], PAIR[0])
    assert why.score == pytest.approx(1)
    np.testing.assert_allclose(why.matrix, why.matrix.T, atol=1e-12)


@pytest.mark.parametrize("fold", [True, False])
def test_a_decomposition_sums_to_the_models_own_embedding(load, fold):
    for kind in ("bert", "dot"):
        model = load(kind)
        for dec in Explainer(model, layer=1, fold_reference=fold).decompose(list(PAIR)):
            np.testing.assert_allclose(dec.embedding, model.encode(dec.text), atol=1e-6)
            np.testing.assert_allclose(
                dec.contributions.sum(0) + dec.reference, dec.embedding, atol=1e-3 * np.linalg.norm(dec.embedding)
            )
            assert dec.contributions.shape == (len(dec.tokens), 16)
            assert dec.error <= 5e-4
            assert dec.nodes >= 1
            assert dec.reference.any() != fold


def test_many_is_one_by_one_in_order(load):
    explainer = Explainer(load(), layer=1)
    pairs = [(f"{PAIR[i % 2]} number {i % 7}", PAIR[(i + 1) % 2][: 5 + i % 30]) for i in range(PAIRS_TOGETHER + 9)]
    together = list(explainer.explain_many(iter(pairs)))
    assert [(why.text_a, why.text_b) for why in together] == pairs
    for pair, why in list(zip(pairs, together, strict=True))[:: len(pairs) // 12]:
        alone = explainer.explain(*pair)
        assert why.score == pytest.approx(alone.score, abs=1e-6)
        assert abs(why.matrix - alone.matrix).max() < 2e-3  # a text may be decomposed in one and projected in the other
        assert why.relative_error <= 1e-3


def test_batches_of_decompositions_are_one_by_one(load):
    explainer = Explainer(load(), layer=1)
    texts = [f"{PAIR[i % 2]} {'coffee ' * (i % 3)}{i % 5}" for i in range(TEXTS_TOGETHER + 5)]
    together = explainer.decompose(texts)
    assert [dec.text for dec in together] == texts
    for dec in together[::6]:
        (alone,) = explainer.decompose([dec.text])
        np.testing.assert_allclose(dec.embedding, alone.embedding, atol=1e-6)
        assert abs(dec.nodes - alone.nodes) <= 1
        np.testing.assert_allclose(dec.contributions, alone.contributions, atol=1e-3)


def test_a_text_is_decomposed_once_however_many_pairs_share_it(load, decomposed):
    query = "The coffee is bad and nobody drank it in the kitchen"
    pairs = [(query, f"bread {i}") for i in range(2 * PAIRS_TOGETHER)]
    results = list(Explainer(load(), layer=2).explain_many(pairs))
    assert len(results) == len(pairs)
    assert decomposed.count(query) == 1
    assert len(decomposed) == len(set(decomposed))


def test_a_short_query_never_decomposes_a_long_document(load):
    model = load()
    explainer = Explainer(model, layer=1)
    why = explainer.explain("bad coffee", "nobody drank it " * 8)
    assert why.modes == ("forward", "pairwise")
    paired = explainer.pair(*explainer.decompose(["bad coffee", "nobody drank it " * 8]))
    assert paired.modes == ("forward", "reverse")  # more tokens than the 16 dimensions
    np.testing.assert_allclose(why.matrix, paired.matrix, atol=2e-3)


def test_a_tolerance_out_of_reach_is_one_warning_and_the_true_error(load, monkeypatch):
    from whymatch import quadrature

    monkeypatch.setitem(quadrature.RULES, "gauss", quadrature.Rule("gauss", quadrature.RULES["gauss"].order, 2))
    explainer = Explainer(load(), tolerance=1e-5)
    with pytest.warns(
        ToleranceWarning, match=r"1 of 1 pairs miss tolerance=1e-05, .* at the bound of 2 nodes"
    ) as caught:
        why = explainer.explain(*PAIR)
    assert len(caught) == 1
    assert why.error > 1e-5
    assert why.error == pytest.approx(abs(why.score - why.matrix.sum()))
    with pytest.warns(ToleranceWarning, match=r"2 of 2 texts miss") as caught:
        explainer.decompose(list(PAIR))
    assert len(caught) == 1


def test_given_steps_are_used_and_their_error_reported_without_a_warning(load):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        why = Explainer(load(), steps=1).explain(*PAIR)
    assert why.nodes == (1, 1)
    assert why.error > 1e-4


@pytest.mark.parametrize("rule", ["midpoint", "right"])
def test_slow_rules_meet_the_tolerance_too(load, rule):
    why = Explainer(load(), layer=2, rule=rule, tolerance=1e-2).explain(*PAIR)
    assert why.relative_error <= 1e-2
    assert why.rule == rule


TEXTS = {
    "empty": "",
    "spaces": "  \t\n ",
    "one word": "coffee",
    "emoji": "👍🏽 👨‍👩‍👧 ☕️",
    "right to left": "הקפה לא טוב בכלל",
    "combining": "e\u0301\u0323 cafe\u0301",
    "control": "a\x00b\x1b[31mc\u200b\ufeff",
    "only special": "[SEP]",
    "many special": "[CLS] [MASK] [SEP] [PAD]",
    "markup": "</script><img src=x onerror=alert(1)>",
    "long": "coffee is bad. " * 6700,
}


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_explained_exactly(load, kind, name):
    text = TEXTS[name]
    explainer = Explainer(load(kind), layer=1)
    for a, b in ((text, PAIR[0]), (PAIR[0], text), (text, text)):
        why = explainer.explain(a, b)
        assert why.relative_error <= 1e-3
        assert why.matrix.shape == (len(why.tokens_a), len(why.tokens_b)) == (len(why.offsets_a), len(why.offsets_b))
        assert why.words().attributed == pytest.approx(why.attributed, abs=1e-12)
        assert (why.truncated_a, why.truncated_b) == (a == TEXTS["long"], b == TEXTS["long"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(a=st.text(st.characters(), max_size=40), b=st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_is_exact_or_named(folders, a, b):
    explainer = _shared(folders)
    if any("\ud800" <= character <= "\udfff" for character in a + b):
        with pytest.raises(ValueError, match="lone surrogate"):
            explainer.explain(a, b)
        return
    why = explainer.explain(a, b)
    assert why.relative_error <= 1e-3
    for text, tokens, offsets in ((a, why.tokens_a, why.offsets_a), (b, why.tokens_b, why.offsets_b)):
        assert len(tokens) == len(offsets)
        assert all(0 <= low <= high <= len(text) for low, high in offsets)
    words = why.words()
    assert words.matrix.sum() == pytest.approx(why.matrix.sum(), abs=1e-9)
    assert words.matrix.shape == (len(words.tokens_a), len(words.tokens_b))


_EXPLAINERS: dict[str, Explainer] = {}


def _shared(folders) -> Explainer:
    if "one" not in _EXPLAINERS:
        _EXPLAINERS["one"] = Explainer(folders("bert"), layer=1)
    return _EXPLAINERS["one"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layer": 4}, ValueError, r"layer=4 is out of range; this model has 3 blocks: give 0 .* to 3 .*, or -1"),
        ({"layer": -5}, ValueError, r"layer=-5 is out of range"),
        ({"layer": 1.5}, ValueError, r"layer=1.5 is out of range"),
        ({"layer": True}, ValueError, r"layer=True is out of range"),
        ({"tolerance": 0}, ValueError, r"tolerance=0 cannot be met; give 1e-06 to 1"),
        ({"tolerance": -1}, ValueError, r"tolerance=-1 cannot be met"),
        ({"tolerance": 1e-9}, ValueError, r"tolerance=1e-09 cannot be met; give 1e-06 to 1"),
        ({"tolerance": float("nan")}, ValueError, r"tolerance=nan cannot be met"),
        ({"tolerance": "low"}, ValueError, r"tolerance='low' cannot be met"),
        ({"steps": 0}, ValueError, r"steps=0 is not a number of nodes; give 1 to 2,048"),
        ({"steps": 5000}, ValueError, r"steps=5000 is not a number of nodes"),
        ({"steps": 2.5}, ValueError, r"steps=2.5 is not a number of nodes"),
        ({"rule": "simpson"}, ValueError, r"rule='simpson' is not known"),
        ({"similarity": "euclidean"}, ValueError, r"similarity='euclidean' is not known; choose 'cosine', 'dot'"),
        ({"reference": ""}, ValueError, r"reference='' is an empty text"),
        ({"groups": "letters"}, ValueError, r"groups='letters' is not known"),
        ({"device": "meta"}, ValueError, r"device='meta', but the model given is on 'cpu' and is never moved"),
    ],
)
def test_bad_settings_are_named(load, change, error, message):
    with pytest.raises(error, match=message):
        Explainer(load(), **change)


def test_a_model_with_another_similarity_is_refused_until_one_is_given(load):
    model = load("dot")
    model.similarity_fn_name = "manhattan"
    with pytest.raises(ValueError, match=r"is 'manhattan', which is not a product of embeddings; give similarity="):
        Explainer(model)
    assert Explainer(model, similarity="cosine").explain(*PAIR).relative_error <= 1e-3


def test_layers_count_from_both_ends(load):
    model = load()
    assert Explainer(model).num_layers == 3
    assert Explainer(model, layer=-1).settings.layer == 3
    assert Explainer(model, layer=-4).settings.layer == 0
    assert Explainer(model, layer=np.int64(2)).settings.layer == 2


def test_bad_inputs_are_named(load):
    explainer = Explainer(load())
    with pytest.raises(TypeError, match=r"a text must be a str, not bytes: b'a'"):
        explainer.explain(b"a", "b")
    with pytest.raises(TypeError, match=r"decompose takes a list of texts, not one: give \['coffee'\]"):
        explainer.decompose("coffee")
    with pytest.raises(TypeError, match=r"pair 1 is not two texts: 'ab'"):
        list(explainer.explain_many([("a", "b"), "ab"]))
    with pytest.raises(TypeError, match="model must be a hub id, a folder or a SentenceTransformer, not int: 7"):
        Explainer(7)
    assert explainer.decompose([]) == []
    assert list(explainer.explain_many([])) == []


def test_a_path_that_is_not_finite_is_refused(load):
    model = load()
    explainer = Explainer(model, layer=1)
    with torch.no_grad():
        bread = model.tokenizer.convert_tokens_to_ids("bread")
        model[0].auto_model.embeddings.word_embeddings.weight[bread] = float("inf")
    texts = ["The coffee is bad.", "The bread is bad."]
    with pytest.raises(
        ArithmeticError, match=r"at layer 1 cannot be integrated: .*not finite there.*: 'The bread is bad.'"
    ):
        explainer.decompose(texts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_model_is_derived_in_single(load, dtype):
    """Its own scores are rounded; what they are compared with is not, and no warning blames the nodes."""
    model = load("bert", dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half = Explainer(model, layer=1).explain(*PAIR)
    assert half.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert half.relative_error <= 1e-3 + 4 * torch.finfo(dtype).eps
    single = Explainer(model.float(), layer=1).explain(*PAIR)
    np.testing.assert_allclose(half.matrix, single.matrix, atol=2e-3)


def test_progress_is_shown_on_request(load, capsys):
    explainer = Explainer(load(), layer=2)
    assert len(list(explainer.explain_many([PAIR], progress=True))) == 1
    assert len(explainer.decompose(list(PAIR), progress=True)) == 2
    shown = capsys.readouterr()
    assert "pairs" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_block_of_features_sums_to_its_entry(load, layer, fold):
    explainer = Explainer(load(), layer=layer, fold_reference=fold, tolerance=1e-5)
    why = explainer.pair(*explainer.decompose(PAIR))
    for i, j in ((2, 3), (0, 1), (-1, -2)):
        block = explainer.features(*PAIR, i, j)
        assert block.shape == (16, 16)
        assert block.sum() == pytest.approx(why.matrix[i, j], abs=1e-7)
    with pytest.raises(IndexError, match=r"token 99 is out of range: 'The coffee is not good.' has 8 tokens"):
        explainer.features(*PAIR, 99, 0)


def test_features_are_those_of_the_oracle(load):
    model = load()
    expected = oracle.attributions(model, *PAIR, 1, steps=12)["features"]
    explainer = Explainer(model, layer=1, rule="right", steps=12, fold_reference=False, tolerance=1e-6)
    np.testing.assert_allclose(explainer.features(*PAIR, 2, 4), expected[2, :, 4], atol=1e-7)


def test_what_encode_is_told_is_checked(load):
    explainer = Explainer(load(), layer=2)
    with pytest.raises(TypeError, match="prompt=3 is neither a text nor a pair of them"):
        explainer.explain(*PAIR, prompt=3)
    with pytest.raises(TypeError, match=r"task=.*1.* is neither a text nor a pair"):
        explainer.explain(*PAIR, task=("query", 1))
    with pytest.raises(TypeError, match="decompose takes a list of texts, not one: give"):
        explainer.decompose(7)


def test_another_layer_shares_the_model(load):
    explainer = Explainer(load(), layer=2)
    other = explainer.at_layer(0)
    assert other.model is explainer.model
    assert (other.settings.layer, explainer.settings.layer) == (0, 2)
    assert other.explain(*PAIR).layer == 0
    with pytest.raises(ValueError, match="layer=9 is out of range"):
        explainer.at_layer(9)


def test_one_copy_of_the_weights_however_many_lengths(load, monkeypatch):
    """In another precision a cut holds weights of its own, as large as the model."""
    from whymatch.cut import Cut

    made = []
    original = Cut.__init__
    monkeypatch.setattr(Cut, "__init__", lambda self, *args: (made.append(1), original(self, *args))[1])
    texts = ["coffee " * n for n in range(1, 9)]
    Explainer(load(), layer=2, tolerance=1e-5).decompose(texts)
    assert len(made) == 1
