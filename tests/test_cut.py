"""The encoder in two parts, and the model untouched by it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from whymatch import Explainer, method
from whymatch.encoders.cut import Cut, EncoderError, copy_tree, model_code
from whymatch.encoders.encoder import Encoder
from whymatch.paths import derivatives, integrate, jacobian, secant
from whymatch.reading.inputs import EncodeOptions, batched

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


@pytest.mark.parametrize(
    ("kind", "layers"),
    [("bert", 3), ("mpnet", 3), ("albert", 3), ("modernbert", 0), ("qwen3", 0)],
)
def test_linear_layers_of_a_blocks_own_input_can_be_given_with_it(load, kind, layers):
    """Queries, keys and values where the block begins with them; none where it begins with a norm."""
    encoder = Encoder(load(kind), kind)
    (given,) = encoder.read([PAIR[1]], EncodeOptions())
    cut = encoder.cut(given, 1, torch.float64)
    features = batched([given.features], cut.device)
    x = cut.head(features)
    lift, tail, which = cut.lift(1), cut.tail(features, 1, 2), torch.zeros(1, dtype=torch.long)
    assert (0 if lift is None else len(lift.weights)) == layers
    if lift is None:
        return
    torch.testing.assert_close(tail(lift.points(x), which), tail(x, which))
    beside = lift.points(x)
    beside[..., -1] += 1  # what is given is what is used
    assert not torch.allclose(tail(beside, which), tail(x, which))
    tangent, cotangent = torch.randn_like(x), torch.randn_like(beside)
    torch.testing.assert_close((lift.tangents(tangent) * cotangent).sum(), (tangent * lift.cotangents(cotangent)).sum())


@pytest.mark.parametrize("kind", ["bert", "mpnet", "t5"])
def test_a_text_that_the_model_has_embedded_does_not_run_again(load, kind, monkeypatch):
    """Its hidden states are kept. T5's blocks also return a bias, and it runs as before."""
    model, rows = load(kind), []
    head = Cut.head

    def count(self, features, **options):
        states = head(self, features, **options)
        rows.append(len(states))
        return states

    monkeypatch.setattr(Cut, "head", count)
    options = {"layer": 1, "path": "relay", "special": "keep"}
    why = Explainer(model, **options).explain(*PAIR)
    assert rows == ([2, 1, 2, 1, 2] if kind == "t5" else [2, 1, 1])  # the first of all is compared
    monkeypatch.setattr(method, "FEW", 0)
    rows.clear()
    again = Explainer(model, **options).explain(*PAIR)
    np.testing.assert_allclose(why.matrix, again.matrix, atol=1e-5)
    assert rows == [2, 2]


@pytest.mark.parametrize("stop", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["head", "values", "jvp", "vjp", "record"])
def test_the_model_is_untouched_after_an_exception(load, monkeypatch, stop, where):
    """Stopped in the encoder's run, in the probe, and amid derivatives and secants, with the lock held."""
    model = load()
    embedded = model.encode(list(PAIR))
    before = state(model)
    # Without divisions, with which texts as short as these are not projected.
    explainer = Explainer(model, path="secant" if where == "record" else "relay", divisions=0)
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

    target = {"head": Cut, "values": integrate, "record": secant}.get(where, jacobian)
    monkeypatch.setattr(target, where, entered(getattr(target, where)))
    monkeypatch.setattr(derivatives, "layer_norm", layer_norm)
    with pytest.raises(type(stop)):
        explainer.explain(*PAIR)
    assert not derivatives._underived.get()
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
    assert abs(first.score - second.score) > 1e-5
    assert second.relative_error < 1e-3
    assert second.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)


def test_a_compiled_model_is_not_run_compiled(load, monkeypatch):
    """Compiled code would run the model's own modules, without the cut."""
    model = load()
    monkeypatch.setattr(model, "_compiled_call_impl", lambda *_: pytest.fail("the compiled model was run"))
    assert Explainer(model, layer=1).explain(*PAIR).relative_error < 1e-3


def test_memory_that_runs_out_is_not_taken_for_the_models_fault(load, monkeypatch):
    explainer = Explainer(load())

    def layer_norm(*_args, **_kwargs):
        raise MemoryError

    monkeypatch.setattr(derivatives, "layer_norm", layer_norm)
    with pytest.raises(MemoryError):
        explainer.explain(*PAIR)


def test_a_thread_that_uses_the_model_does_not_pad_what_is_read(load):
    """A tokenizer's padding is its own state, which the model's ``encode`` sets."""
    model = load()
    encoder = Encoder(model, "tiny")
    (before,) = encoder.read(["bad coffeetea"], EncodeOptions())
    backend = model.tokenizer.backend_tokenizer
    backend.enable_padding(length=20)
    backend.enable_truncation(2)
    (after,) = encoder.read(["bad coffeetea"], EncodeOptions())
    assert after.tokens == before.tokens
    assert backend.padding["length"] == 20  # and the model's own tokenizer is left as it is
    assert backend.truncation["max_length"] == 2
    model.tokenizer.add_tokens(["coffeetea"])  # a change of its content is seen
    (added,) = encoder.read(["bad coffeetea"], EncodeOptions())
    assert added.tokens != before.tokens


@pytest.mark.parametrize("layer", range(4))
def test_the_two_parts_are_the_whole(load, layer):
    model = load("dot")
    encoder = Encoder(model, "tiny")
    inputs = encoder.read(["The coffee is not good.", "The coffee is not bad."], EncodeOptions())
    features = batched([given.features for given in inputs], encoder.device)
    cut = encoder.cut(inputs[0], layer, torch.float32)
    state = cut.head(features)
    whole = cut.tail(features)(state, torch.arange(2))
    np.testing.assert_allclose(whole, model.encode([given.text for given in inputs]), atol=1e-6)
    turned = cut.tail(features)(state.flip(0), torch.tensor([1, 0]))  # each with what belongs to its own input
    np.testing.assert_allclose(turned, whole.flip(0), atol=1e-6)
    if layer < 3:
        following = cut.tail(features, layer, layer + 1)(state, torch.arange(2))
        np.testing.assert_allclose(
            following, encoder.cut(inputs[0], layer + 1, torch.float32).head(features), atol=1e-6
        )


def test_a_copy_shares_weights_and_nothing_else(load):
    model = load()
    twin = copy_tree(model, attention="eager")
    assert [id(weight) for weight in twin.parameters()] == [id(weight) for weight in model.parameters()]
    assert twin[0].auto_model.config._attn_implementation == "eager" != model[0].auto_model.config._attn_implementation
    twin.eval()[0].auto_model.register_forward_hook(lambda *_: None)
    assert not model[0].auto_model._forward_hooks
    doubled = copy_tree(model, lambda tensor: tensor.detach().double() if tensor.is_floating_point() else tensor)
    assert {weight.dtype for weight in doubled.parameters()} == {torch.float64}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_what_fails_in_the_models_own_code_is_named():
    with (
        pytest.raises(
            EncoderError, match=r"'tiny' fails in its own code while it naps \(ValueError: 'no'\)\. Wake it"
        ) as seen,
        model_code("tiny", "it naps", "Wake it"),
    ):
        raise ValueError("no\nmore")
    assert isinstance(seen.value.__cause__, ValueError)
    with (
        pytest.raises(EncoderError, match="PyTorch cannot differentiate one of its operations"),
        model_code("tiny", "x"),
    ):
        raise RuntimeError("no batching rule")
    with pytest.raises(MemoryError), model_code("tiny", "it runs"):
        raise MemoryError
