from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import zoo

from whymatch import Explainer
from whymatch.encoders import loading
from whymatch.encoders.adjusted import Scale, adjust


def test_a_folder_is_loaded(folders):
    explainer = Explainer(folders("bert"))
    assert explainer.settings.model == str(folders("bert"))
    assert explainer.explain("coffee", "bad coffee").relative_error <= 1e-3


def test_the_default_model_is_the_packaged_one(minilm):  # noqa: ARG001 it skips where there is none
    assert Explainer().settings.model == loading.DEFAULT_MODEL
    assert next(model.name for model in loading.installed()) == loading.DEFAULT_MODEL
    assert Explainer("all-MiniLM-L6-v2").settings.model == loading.DEFAULT_MODEL


def test_changed_weights_are_refused(minilm, tmp_path):  # noqa: ARG001
    folder = tmp_path / "model"
    shutil.copytree(loading.packaged(), folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02")
    with pytest.raises(ValueError, match=r"are not those of sentence-transformers/all-MiniLM-L6-v2: SHA-256"):
        loading.check_packaged(folder)


def test_an_unknown_model_says_what_is_here():
    with pytest.raises(ValueError, match=r"cannot load the model 'acme/nothing': there is no.*Usable offline: "):
        Explainer("acme/nothing")


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model: it has neither modules\.json nor config\.json"):
        Explainer(tmp_path)


def test_without_the_package_there_is_no_packaged_model(monkeypatch):
    monkeypatch.setattr(loading, "PACKAGE", "a_package_that_is_not_there")
    assert loading.packaged() is None
    assert loading.DEFAULT_MODEL not in [model.name for model in loading.installed()]


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Models that are no bi-encoders, as sentence-transformers saves them, by the name of their class."""
    import transformers
    from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder

    place = tmp_path_factory.mktemp("others")
    backbone = zoo.backbone(place / "backbone", "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(backbone)
    config = transformers.BertConfig.from_pretrained(backbone, num_labels=1)
    for kind in ("MaskedLM", "SequenceClassification"):
        getattr(transformers, f"BertFor{kind}")(config).save_pretrained(place / kind)
        tokenizer.save_pretrained(place / kind)
    return {
        "CrossEncoder": CrossEncoder(str(place / "SequenceClassification"), device="cpu"),
        "SparseEncoder": SparseEncoder(str(place / "MaskedLM"), device="cpu"),
        "MultiVectorEncoder": MultiVectorEncoder(str(backbone), device="cpu"),
    }, place


def _forget_class(folder):
    """Older versions did not name a model's class."""
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps({key: v for key, v in json.loads(config.read_text()).items() if key != "model_type"}))


def test_a_cross_encoder_is_refused(others, tmp_path):
    model = others[0]["CrossEncoder"]
    reason = "it reads both texts at once and gives a score, .*decompose_callable"
    with pytest.raises(TypeError, match=f"^a CrossEncoder cannot be explained: {reason}"):
        Explainer(model)
    model.save_pretrained(str(tmp_path / "model"))
    with pytest.raises(ValueError, match=f"model' is a CrossEncoder, which cannot be explained: {reason}"):
        Explainer(tmp_path / "model")
    _forget_class(tmp_path / "model")
    (tmp_path / "model/modules.json").unlink()  # which it had not then
    with pytest.raises(ValueError, match="is a CrossEncoder, which"):
        loading.load(tmp_path / "model", "cpu")


@pytest.mark.parametrize("kind", ["SparseEncoder", "MultiVectorEncoder"])
def test_models_of_other_kinds_are_loaded_as_such(others, tmp_path, kind):
    others[0][kind].save_pretrained(str(tmp_path / "model"))
    assert type(loading.load(tmp_path / "model", "cpu")[0]).__name__ == kind
    if kind == "MultiVectorEncoder":
        _forget_class(tmp_path / "model")  # their modules tell
        assert type(loading.load(tmp_path / "model", "cpu")[0]).__name__ == kind


def test_a_model_of_an_unknown_kind_is_refused(folders, tmp_path):
    shutil.copytree(folders("bert"), tmp_path / "model")
    config = tmp_path / "model/config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "HyperEncoder"}))
    with pytest.raises(ValueError, match="says that it is a 'HyperEncoder', which is not known here"):
        Explainer(tmp_path / "model")


@pytest.mark.parametrize("content", [{"architectures": 5}, {"architectures": "BertModel"}, [1], None, "x"])
def test_a_strange_configuration_says_nothing_of_a_kind(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert loading.check_kind(tmp_path) == "SentenceTransformer"


@pytest.mark.parametrize("file", ["config.json", "sentence_bert_config.json", "1_Pooling/config.json"])
def test_a_file_that_is_nested_too_deeply_is_no_recursion(folders, tmp_path, file):
    shutil.copytree(folders("bert"), tmp_path / "model")
    (tmp_path / "model" / file).write_text("[" * 100_000)
    with pytest.raises((ValueError, OSError), match="model"):
        Explainer(tmp_path / "model")


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '["not a module"]'])
def test_a_damaged_list_of_modules_is_named(folders, tmp_path, content):
    shutil.copytree(folders("bert"), tmp_path / "model")
    (tmp_path / "model/modules.json").write_text(content)
    with pytest.raises(ValueError, match=r"the modules\.json of .*model' is not"):
        Explainer(tmp_path / "model")


def test_an_adjusted_folder_brings_its_settings_and_modules(load, tmp_path):
    model = load()
    model.prompts, model.default_prompt_name = {"query": "bread: ", "document": ""}, "query"
    model.truncate_dim, model.similarity_fn_name = 8, "dot"
    adjusted = adjust(model)
    adjusted.append(Scale(2.0))
    adjusted.append(load()[-1])  # a Normalize, after the shift
    adjusted.save(str(tmp_path / "model"))
    loaded, _ = loading.load(tmp_path / "model", "cpu")
    assert [type(module) for module in loaded] == [type(module) for module in adjusted]
    for name in ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "max_seq_length"):
        assert getattr(loaded, name) == getattr(adjusted, name)
    np.testing.assert_array_equal(loaded.encode(["bad coffee"]), adjusted.encode(["bad coffee"]))
    assert loading.identity(loaded) == loading.identity(adjusted)


def test_an_adjusted_folder_names_no_folder_outside(load, tmp_path):
    adjust(load()).save(str(tmp_path / "model"))
    modules = tmp_path / "model/modules.json"
    listed = json.loads(modules.read_text())
    modules.write_text(json.dumps([listed[0] | {"path": "../elsewhere"}]))
    with pytest.raises(ValueError, match=r"names a folder outside of it: '\.\./elsewhere'"):
        loading.load(tmp_path / "model", "cpu")
    modules.write_text(json.dumps([{"type": listed[0]["type"]}]))
    with pytest.raises(ValueError, match="is damaged: a module has no 'name'"):
        loading.load(tmp_path / "model", "cpu")


def test_loading_prints_nothing(folders, capfd):
    """The libraries' bars are for those who load a model with them."""
    from transformers.utils import logging

    folder = folders("bert")
    capfd.readouterr()  # what building it printed
    assert logging.is_progress_bar_enabled()
    Explainer(str(folder))
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()
