from __future__ import annotations

import threading

import pytest
import torch

from whymatch import Explainer, jacobian
from whymatch.encoder import Encoder, find_blocks

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
    before = state(model)
    Explainer(model, layer=1).explain(*PAIR)
    Explainer(model, layer=2, tolerance=1e-6, fold_reference=False).decompose(list(PAIR))
    assert_same(before, state(model))
    embedded = model.encode(list(PAIR))
    Explainer(model).explain(*PAIR)
    assert (model.encode(list(PAIR)) == embedded).all()


@pytest.mark.parametrize("stop", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_the_model_is_untouched_after_an_exception(load, monkeypatch, stop, after):
    model = load()
    embedded = model.encode(list(PAIR))
    before = state(model)
    calls = iter(range(100))
    original = torch.nn.functional.softmax

    def softmax(*args, **kwargs):
        if next(calls) == after:
            raise stop
        return original(*args, **kwargs)

    explainer = Explainer(model)
    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)
    with pytest.raises(type(stop)):
        explainer.explain(*PAIR)
    monkeypatch.undo()
    assert_same(before, state(model))
    assert (model.encode(list(PAIR)) == embedded).all()
    assert jacobian.LOCK.acquire(blocking=False)  # and nothing is left locked
    jacobian.LOCK.release()
    assert explainer.explain(*PAIR).relative_error < 1e-3


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


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
def test_blocks_are_found(load, kind):
    model = load(kind)
    assert find_blocks(model).endswith("encoder.layer")
    assert Encoder(model, "tiny").num_layers == 3


def test_a_model_without_blocks_says_what_was_looked_at():
    with pytest.raises(ValueError, match=r"no list of alike transformer blocks found in Linear; looked at: it has no"):
        find_blocks(torch.nn.Linear(2, 2))


def test_a_model_that_begins_with_something_else_is_refused():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from conftest import build_tokenizer

    model = SentenceTransformer(modules=[StaticEmbedding(build_tokenizer("bert").backend_tokenizer, embedding_dim=8)])
    with pytest.raises(TypeError, match="begins with StaticEmbedding, not with a transformer"):
        Explainer(model)
