from __future__ import annotations

import threading

import pytest
import torch

from conftest import count_batches
from whymatch import Explainer

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def test_two_explainers_on_one_model_do_not_disturb_each_other(load):
    model = load()
    first, second = Explainer(model, layer=0), Explainer(model, layer=2)
    alone = first.explain(*PAIR).matrix
    second.explain(*PAIR)
    assert (first.explain(*PAIR).matrix == alone).all()


def test_threads_may_share_an_explainer(load):
    explainer = Explainer(load(), layer=1)
    pairs = [(PAIR[0] + " x" * i, PAIR[1]) for i in range(6)]
    expected = [explainer.explain(*pair).matrix for pair in pairs]
    results: dict[int, object] = {}

    def work(i):
        try:
            results[i] = [explainer.explain(*pairs[i]).matrix for _ in range(3)]
        except BaseException as error:  # the assertion below shows it
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, matrix in enumerate(expected):
        assert isinstance(results[i], list), results[i]
        assert all((again == matrix).all() for again in results[i])


def test_an_explainer_works_inside_inference_mode(load):
    explainer = Explainer(load(), layer=1)
    expected = explainer.explain(*PAIR).matrix
    with torch.inference_mode():
        assert abs(explainer.explain(*PAIR).matrix - expected).max() < 1e-6


def test_a_text_longer_than_the_table_of_positions_is_named(load):
    model = load()
    model.max_seq_length = 600
    text = "coffee " * 100
    with pytest.raises(RuntimeError, match=r"own code while it embeds 'coffee.*max_seq_length to 44 or less"):
        Explainer(model).explain(text, "bread")
    model.max_seq_length = 44
    assert Explainer(model, layer=2).explain(text, "bread").relative_error < 1e-3


def test_a_model_without_pooling_is_refused(load):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(modules=[load()[0]], device="cpu")
    with pytest.raises(TypeError, match=r"has no pooling: it gives no embedding of a whole text\. Add one: Sentence"):
        Explainer(model)


def test_weights_without_values_are_refused(load):
    with pytest.raises(TypeError, match="are on the device 'meta', and so have no values"):
        Explainer(load().to("meta"))


def test_the_default_device_meta_is_refused(load, folders):
    model, path = load(), folders("bert")
    explainer = Explainer(model)
    try:
        torch.set_default_device("meta")
        for attempt in (lambda: Explainer(path), lambda: Explainer(model), lambda: explainer.explain(*PAIR)):
            with pytest.raises(TypeError, match=r"torch\.set_default_device\('meta'\) is in force"):
                attempt()
    finally:
        torch.set_default_device(None)
        vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)  # whose device torch 2.6 asks for, though none
    assert explainer.explain(*PAIR).relative_error < 1e-3


def test_the_models_own_prompt_is_part_of_the_text_it_reads(load):
    model = load()
    model.prompts, model.default_prompt_name = {"query": "bread: "}, "query"
    why = Explainer(model, layer=1).explain(*PAIR)
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert why.relative_error < 1e-3
    low, high = why.offsets_a[why.tokens_a.index("coffee")]
    assert PAIR[0][low:high] == "coffee"
    assert why.words().matrix.sum() == pytest.approx(why.matrix.sum())


def test_embedding_many_texts_can_be_stopped(load):
    count_batches(Explainer(load()))
