"""What users rely on: the names, the import, the README."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import whymatch


def test_the_public_names_are_exactly_these():
    assert sorted(whymatch.__all__) == [
        "Decomposition",
        "Explainer",
        "Explanation",
        "ToleranceWarning",
        "__version__",
        "decompose_callable",
    ]
    assert set(whymatch.__all__) <= set(dir(whymatch))
    for name in whymatch.__all__:
        assert getattr(whymatch, name) is not None
    with pytest.raises(AttributeError, match="module 'whymatch' has no attribute 'explain'"):
        _ = whymatch.explain


def test_the_contract_of_the_explainer():
    parameters = inspect.signature(whymatch.Explainer).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "model": None,
        "layer": 0,
        "reference": "pad",
        "fold_reference": True,
        "similarity": None,
        "rule": "gauss",
        "steps": None,
        "tolerance": 1e-3,
        "device": None,
        "blocks": None,
        "groups": None,
        "trust_remote_code": False,
    }
    public = {name for name in dir(whymatch.Explainer) if not name.startswith("_")}
    assert public == {
        "asymmetric",
        "at_layer",
        "check_portable",
        "decompose",
        "explain",
        "explain_many",
        "features",
        "model",
        "num_layers",
        "pair",
        "rank",
        "settings",
        "with_settings",
    }


def test_importing_is_light():
    script = "import sys, whymatch; print(sorted({'torch', 'transformers', 'matplotlib', 'rich'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    script = "import sys; from whymatch import Explanation; print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
