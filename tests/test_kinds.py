"""Which kind of encoder a model is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from whymatch import Explainer
from whymatch.encoders.kinds import FallbackWarning

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def explain_as_black_box(model, reason, rounding=1e-5):
    """Explain a model that cannot be differentiated: it is said, and the sum is the model's own score."""
    with pytest.warns(FallbackWarning, match=rf"cannot be differentiated, because .*{reason}.* as a black box, by"):
        explainer = Explainer(model)
    why = explainer.explain("bad coffee", "good bread")
    assert why.path == "shapley"
    expected = model.similarity(model.encode("bad coffee"), model.encode("good bread"))
    assert why.score == pytest.approx(float(expected), abs=rounding)
    assert why.error < 1e-6


def test_a_patched_module_is_a_black_box(load):
    """Its forward would run the model's own modules, not the copy's."""
    model = load().train()
    layer = model[0].auto_model.encoder.layer[1]
    layer.forward = layer.forward
    explain_as_black_box(model, r"encoder\.layer\.1, a BertLayer, has a forward of its own")


def test_compiled_and_dispatched_models_are_differentiated(load):
    """Their wrappers are left out of the copy, which the model itself never notices."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    expected = Explainer(load(), layer=1).explain(*PAIR).matrix
    inner, outer, dispatched = load(), load(), load()
    inner[0].model = torch.compile(inner[0].model, backend="eager")
    for model in (inner, torch.compile(outer, backend="eager")):
        np.testing.assert_allclose(Explainer(model, layer=1).explain(*PAIR).matrix, expected, atol=1e-6)
    accelerate.dispatch_model(dispatched[0].model, {"": "cpu"}, main_device="cpu", force_hooks=True)
    assert any("_hf_hook" in vars(module) for module in dispatched.modules())
    np.testing.assert_allclose(Explainer(dispatched, layer=1).explain(*PAIR).matrix, expected, atol=1e-6)


def test_a_model_whose_weights_are_partly_on_disk_is_a_black_box(folders, load, tmp_path):
    """As device_map= puts them there: accelerate lends them to a block while it runs, and the copy would have none."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    places = {"embeddings": "cpu", "pooler": "cpu", "encoder.layer.0": "cpu"}
    places |= {f"encoder.layer.{i}": "disk" for i in (1, 2)}
    options = {"device_map": places, "offload_folder": str(tmp_path)}
    model = SentenceTransformer(str(folders("bert")), model_kwargs=options)
    explain_as_black_box(model, r"accelerate has put its weights in several places \(cpu, meta\)")
    why = Explainer(model, method="shapley").explain(*PAIR)
    np.testing.assert_allclose(why.matrix, Explainer(load(), method="shapley").explain(*PAIR).matrix, atol=1e-5)


def test_another_backend_is_a_black_box(load):
    """As backend="onnx" and "openvino" load them: a runtime in the transformer's place."""

    class Runtime(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.config, self._run = model.config, [model]

        def forward(self, **features):
            return self._run[0](**features)

    model = load()
    model[0].model, model[0].backend = Runtime(model[0].model), "onnx"
    explain_as_black_box(model, "it runs with onnx")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_dynamically_quantised_model_is_a_black_box(load):
    model = load()
    quantised = torch.ao.quantization.quantize_dynamic(model[0].auto_model, {torch.nn.Linear}, dtype=torch.qint8)
    model[0].model = quantised
    # How it rounds depends on what else is in a batch.
    explain_as_black_box(
        model, r"it is quantised \(.* is a .*\), and rounded numbers have no derivative", rounding=0.05
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_eight_bit_weights_are_not_differentiated(load, dtype):
    """As bitsandbytes and compressed-tensors keep them: with a scale elsewhere."""
    model = load()
    dense = model[0].auto_model.encoder.layer[0].output.dense
    dense.weight = torch.nn.Parameter(dense.weight.detach().to(dtype), requires_grad=False)
    with pytest.warns(FallbackWarning, match=r"quantised \(0\.model\.encoder\.layer\.0\.output\.dense is a Linear\)"):
        Explainer(model)


def test_models_that_begin_with_word_embeddings_are_black_boxes():
    from sentence_transformers.sentence_transformer.modules import BoW, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    words = WordEmbeddings(WhitespaceTokenizer(["bad", "coffee"]), np.eye(2, 4, dtype=np.float32))
    for modules in ([words, Pooling(4, "mean")], [BoW(["bad", "coffee"])]):
        with pytest.warns(FallbackWarning, match="(WordEmbeddings|BoW) has no blocks"):
            explainer = Explainer(SentenceTransformer(modules=modules, device="cpu"), similarity="dot")
        assert explainer.explain("bad coffee", "coffee").error < 1e-6
