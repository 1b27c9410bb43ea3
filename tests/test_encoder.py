from __future__ import annotations

import threading

import pytest
import torch
from zoo import build_tokenizer

from whymatch import Explainer, jacobian
from whymatch.cut import Cut

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def state(model):
    """Everything about a model that must be the same afterwards."""
    hooks = [
        (name, kind, list(getattr(module, kind)))
        for name, module in model.named_modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ]
    return {
        "weights": {name: weight.clone() for name, weight in model.state_dict().items()},
        "identity": [(name, id(weight), weight.requires_grad) for name, weight in model.named_parameters()],
        "modes": [(name, module.training) for name, module in model.named_modules()],
        "forwards": [name for name, module in model.named_modules() if "forward" in vars(module)],
        "hooks": hooks,
        "device": str(model.device),
        "attention": model[0].auto_model.config._attn_implementation,
        "tokenizer": (model.tokenizer.padding_side, model.tokenizer.truncation_side, model.max_seq_length),
        "gradients": [weight.grad for weight in model.parameters()],
    }


def assert_same(before, after):
    weights, others = before.pop("weights"), after.pop("weights")
    assert before == after
    for name in weights:
        assert torch.equal(weights[name], others[name]), name


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_untouched(load, training):
    model = load().train(training)
    model[0].auto_model.encoder.layer[1].register_forward_hook(lambda *_: None)
    embedded = model.encode(list(PAIR))
    model.train(training)  # encode itself puts a model into evaluation mode
    before = state(model)
    Explainer(model, layer=1).explain(*PAIR)
    Explainer(model, layer=2, tolerance=1e-6, fold_reference=False).decompose(list(PAIR))
    assert_same(before, state(model))
    assert (model.encode(list(PAIR)) == embedded).all()


@pytest.mark.parametrize("stop", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["head", "values", "jvp", "vjp"])
def test_the_model_is_untouched_after_an_exception(load, monkeypatch, stop, where):
    """Stopped in the encoder's run, in the probe, and amid forward and reverse derivatives, with the lock held."""
    model = load()
    embedded = model.encode(list(PAIR))
    before = state(model)
    explainer = Explainer(model)
    original = torch.nn.functional.layer_norm
    reached = []

    def layer_norm(*args, **kwargs):
        if reached:
            raise stop
        return original(*args, **kwargs)

    def entered(function):
        def run(*args, **kwargs):
            reached.append(where)
            return function(*args, **kwargs)

        return run

    target = Cut if where == "head" else jacobian
    monkeypatch.setattr(target, where, entered(getattr(target, where)))
    monkeypatch.setattr(torch.nn.functional, "layer_norm", layer_norm)
    with pytest.raises(type(stop)):
        explainer.explain(*PAIR)
    monkeypatch.undo()
    assert reached == [where]
    assert_same(before, state(model))
    assert (model.encode(list(PAIR)) == embedded).all()
    assert _is_free(jacobian.LOCK)
    assert explainer.explain(*PAIR).relative_error < 1e-3


def _is_free(lock) -> bool:
    """Whether another thread could take the lock."""
    taken = []

    def take():
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def test_new_weights_are_seen_at_once(load):
    model = load()
    explainer = Explainer(model, layer=1)
    first = explainer.explain(*PAIR)
    with torch.no_grad():
        model[0].auto_model.encoder.layer[2].output.dense.weight.mul_(1.5)
    second = explainer.explain(*PAIR)
    assert abs(first.score - second.score) > 1e-4
    assert second.relative_error < 1e-3
    assert second.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)


def test_two_explainers_on_one_model_do_not_disturb_each_other(load):
    model = load()
    one, two = Explainer(model, layer=0), Explainer(model, layer=2)
    alone = one.explain(*PAIR).matrix
    two.explain(*PAIR)
    assert (one.explain(*PAIR).matrix == alone).all()


def test_threads_may_share_an_explainer(load):
    explainer = Explainer(load(), layer=1)
    pairs = [(PAIR[0] + " x" * i, PAIR[1]) for i in range(6)]
    expected = [explainer.explain(*pair).matrix for pair in pairs]
    found: dict[int, object] = {}

    def work(i):
        try:
            found[i] = [explainer.explain(*pairs[i]).matrix for _ in range(3)]
        except BaseException as error:  # the assertion below shows it
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pairs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, matrix in enumerate(expected):
        assert isinstance(found[i], list), found[i]
        assert all((again == matrix).all() for again in found[i])


def test_an_explainer_works_inside_inference_mode(load):
    explainer = Explainer(load(), layer=1)
    expected = explainer.explain(*PAIR).matrix
    with torch.inference_mode():
        assert abs(explainer.explain(*PAIR).matrix - expected).max() < 1e-6


def test_a_compiled_model_is_not_run_compiled(load, monkeypatch):
    """Compiled code would run the model's own modules, without the cut."""
    model = load()
    monkeypatch.setattr(model, "_compiled_call_impl", lambda *_: pytest.fail("the compiled model was run"))
    assert Explainer(model, layer=1).explain(*PAIR).relative_error < 1e-3


def test_a_model_that_begins_with_something_else_is_refused():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = build_tokenizer("wordpiece").backend_tokenizer
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)])
    with pytest.raises(TypeError, match=r"StaticEmbedding .*begin with a transformer.*decompose_callable"):
        Explainer(model)


def test_a_patched_module_is_refused(load):
    """Its forward would run the model's own modules, not the copy's."""
    model = load()
    layer = model[0].auto_model.encoder.layer[1]
    layer.forward = layer.forward
    with pytest.raises(TypeError, match="a BertLayer of this model has a forward of its own"):
        Explainer(model).explain(*PAIR)


def test_the_models_own_prompt_is_part_of_the_text_it_reads(load):
    model = load()
    model.prompts, model.default_prompt_name = {"query": "bread: "}, "query"
    why = Explainer(model, layer=1).explain(*PAIR)
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert why.relative_error < 1e-3
    low, high = why.offsets_a[why.tokens_a.index("coffee")]
    assert PAIR[0][low:high] == "coffee"
    assert why.words().matrix.sum() == pytest.approx(why.matrix.sum())
