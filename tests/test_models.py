from __future__ import annotations

import shutil

import pytest

from whymatch import Explainer, models


def test_a_folder_is_loaded(folders):
    explainer = Explainer(folders("bert"))
    assert explainer.settings.model == str(folders("bert"))
    assert explainer.explain("coffee", "bad coffee").relative_error <= 1e-3


def test_the_default_model_is_the_packaged_one(minilm):  # noqa: ARG001 it skips where there is none
    assert Explainer().settings.model == models.DEFAULT_MODEL
    assert next(model.name for model in models.installed()) == models.DEFAULT_MODEL
    assert Explainer("all-MiniLM-L6-v2").settings.model == models.DEFAULT_MODEL


def test_changed_weights_are_refused(minilm, tmp_path):  # noqa: ARG001
    folder = tmp_path / "model"
    shutil.copytree(models.packaged(), folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02")
    with pytest.raises(ValueError, match=r"are not those of sentence-transformers/all-MiniLM-L6-v2: SHA-256"):
        models.check_packaged(folder)


def test_an_unknown_model_says_what_is_here():
    with pytest.raises(ValueError, match=r"cannot load the model 'acme/nothing': it is no folder.*Usable offline: "):
        Explainer("acme/nothing")


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model: it has neither modules\.json nor config\.json"):
        Explainer(tmp_path)


def test_without_the_package_there_is_no_packaged_model(monkeypatch):
    monkeypatch.setattr(models, "PACKAGE", "a_package_that_is_not_there")
    assert models.packaged() is None
    assert models.DEFAULT_MODEL not in [model.name for model in models.installed()]
