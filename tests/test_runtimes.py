"""Models that run in another runtime than torch: the real ones, on a tiny model that is exported for the test."""

from __future__ import annotations

import importlib
import warnings

import numpy as np
import pytest
import torch

from whymatch import Explainer
from whymatch.encoders.kinds import FallbackWarning

PAIR = ("The coffee is not good.", "This is bad coffee.")


class Runtime(torch.nn.Module):
    """What stands in a transformer's place when sentence-transformers loads it with another backend."""

    def __init__(self, config, run):
        super().__init__()
        self.config, self._run = config, run

    def forward(self, input_ids, attention_mask, **_):
        from transformers.modeling_outputs import BaseModelOutput

        out = self._run({"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()})
        return BaseModelOutput(last_hidden_state=torch.as_tensor(np.array(out)))


@pytest.fixture(scope="module")
def exported(folders, tmp_path_factory):
    """The file of a tiny BERT in ONNX's format."""
    pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folders("bert")), device="cpu")[0].auto_model.eval()

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    example = (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))
    axes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=40)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Plain(),
            example,
            str(path),
            input_names=["input_ids", "attention_mask"],
            dynamic_shapes={"input_ids": axes, "attention_mask": axes},
            dynamo=True,
            verbose=False,
        )
    return path


def with_onnx(path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def with_openvino(path):
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    compiled = openvino.Core().compile_model(str(path), "CPU")
    return lambda inputs: compiled(inputs)[0]


@pytest.mark.filterwarnings("ignore")  # what exporting a model warns of is not this test's matter
@pytest.mark.parametrize(
    ("backend", "library", "name"),
    [
        ("onnx", "optimum.onnxruntime", "ORTModelForFeatureExtraction"),
        ("openvino", "optimum.intel", "OVModelForFeatureExtraction"),
    ],
)
def test_what_sentence_transformers_loads_is_a_black_box(folders, load, backend, library, name):
    """The real loader, where the library that it needs works with this version of transformers."""
    from sentence_transformers import SentenceTransformer

    try:
        getattr(importlib.import_module(library), name)
    except ImportError as error:
        pytest.skip(f"{library} does not load here: {str(error).splitlines()[-1]}")
    model = SentenceTransformer(str(folders("bert")), backend=backend, device="cpu", model_kwargs={"export": True})
    with pytest.warns(FallbackWarning, match=f"it runs with {backend}: it is explained as a black box"):
        explainer = Explainer(model)
    why = explainer.explain(*PAIR)
    assert why.error < 1e-6
    np.testing.assert_allclose(why.matrix, Explainer(load(), method="shapley").explain(*PAIR).matrix, atol=1e-4)


@pytest.mark.parametrize(("backend", "connect"), [("onnx", with_onnx), ("openvino", with_openvino)])
def test_a_real_runtime_is_a_black_box(load, exported, backend, connect):
    model, original = load(), load()
    model[0].model, model[0].backend = Runtime(model[0].model.config, connect(exported)), backend
    np.testing.assert_allclose(model.encode(list(PAIR)), original.encode(list(PAIR)), atol=1e-4)
    with pytest.warns(FallbackWarning, match=f"it runs with {backend}: it is explained as a black box"):
        explainer = Explainer(model)
    why = explainer.explain(*PAIR)
    assert why.error < 1e-6
    expected = Explainer(original, method="shapley").explain(*PAIR)
    np.testing.assert_allclose(why.matrix, expected.matrix, atol=1e-3)
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-5)
