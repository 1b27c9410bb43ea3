"""LoRA adapters (of the library peft): a model is explained as it is at the moment."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from whymatch import Explainer
from whymatch.encoders.adjusted import adjust

peft = pytest.importorskip("peft", reason="peft is not installed")
# It says of a second adapter that there are now two.
pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def add_adapter(model, name="first", seed=0):
    """Add an adapter that changes the embeddings; a new one is zero."""
    torch.manual_seed(seed)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query", "value"], lora_alpha=16), adapter_name=name)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if f"lora_B.{name}" in key:
                weight.normal_(std=0.3)
    return model.eval()


def check(model, explainer):
    """Explain a pair; the sum is the score that the model gives at this moment."""
    why = explainer.explain(*PAIR)
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert why.relative_error <= 1e-3
    return why


@pytest.mark.parametrize("path", ["straight", "secant"])
def test_adapters_are_switched_on_and_off(load, path):
    model = load()
    explainer = Explainer(model, layer=1, path=path)
    bare, identity = check(model, explainer), explainer.identity
    add_adapter(model)
    adapted = check(model, explainer)
    assert abs(adapted.matrix - bare.matrix).max() > 1e-3
    assert explainer.identity != identity
    model.disable_adapters()
    np.testing.assert_allclose(check(model, explainer).matrix, bare.matrix, atol=1e-6)
    model.enable_adapters()
    np.testing.assert_allclose(check(model, explainer).matrix, adapted.matrix, atol=1e-6)
    add_adapter(model, "second", seed=1)
    model.set_adapter("second")
    other = check(model, explainer)
    assert abs(other.matrix - adapted.matrix).max() > 1e-3
    model.set_adapter("first")
    np.testing.assert_allclose(check(model, explainer).matrix, adapted.matrix, atol=1e-6)


def test_adjusted_models_follow_their_adapters(load):
    """The reference's embedding, which an adjusted model subtracts, is that of the adapters that are on."""
    adjusted = adjust(add_adapter(load()))
    transformer = next(each for each in adjusted.modules() if hasattr(each, "auto_model")).auto_model
    explainer = Explainer(adjusted, layer=1)
    on = check(adjusted, explainer)
    assert abs(on.constant) < 1e-6
    transformer.disable_adapters()
    off = check(adjusted, explainer)
    assert abs(off.matrix - on.matrix).max() > 1e-3
    transformer.enable_adapters()
    np.testing.assert_allclose(check(adjusted, explainer).matrix, on.matrix, atol=1e-6)


def test_black_boxes_follow_them_too(load):
    """A black box remembers embeddings by text; a switch makes it forget them."""
    model = add_adapter(load())
    explainer = Explainer(model, method="shapley")
    on = check(model, explainer)
    model.disable_adapters()
    off = check(model, explainer)
    assert abs(off.matrix - on.matrix).max() > 1e-3
    model.enable_adapters()
    identity = explainer.identity
    for layer in model.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("first", 3.0)
    assert abs(check(model, explainer).matrix - on.matrix).max() > 1e-3
    assert explainer.identity != identity
