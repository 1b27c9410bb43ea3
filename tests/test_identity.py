"""The identity of a model changes with what decides its embeddings, and with nothing else."""

from __future__ import annotations

import pytest
import torch

from whymatch.encoders import identity as room
from whymatch.encoders.adjusted import adjust
from whymatch.encoders.identity import identity


def word_embeddings(model):
    return model[0].auto_model.embeddings.word_embeddings.weight


def step(model):
    model(model.preprocess(["coffee"]))["sentence_embedding"][0, 0].backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def add_in_place(model):
    with torch.no_grad():
        word_embeddings(model).add_(0.1)


def swap_rows(model):
    data = word_embeddings(model).data
    data[[3, 9]] = data[[9, 3]]


def load_state(model):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


class Adapter(torch.nn.Module):
    """As a layer of peft looks from outside."""

    disable_adapters = False
    active_adapters = ("one",)


CHANGES = {
    "step": step,
    "in place": add_in_place,
    "data in place": lambda model: word_embeddings(model).data[3].mul_(-1),
    "data swapped": swap_rows,
    "data replaced": lambda model: setattr(word_embeddings(model), "data", word_embeddings(model).data + 1),
    "load_state_dict": load_state,
    "dtype": lambda model: model.to(torch.float64),
    "pooling": lambda model: setattr(model[1], "pooling_mode", "max"),
    "heads": lambda model: setattr(model[0].auto_model.config, "num_attention_heads", 4),
    "prompt": lambda model: model.prompts.update(query="query: "),
    "length": lambda model: setattr(model, "max_seq_length", 7),
    "dimensions": lambda model: setattr(model, "truncate_dim", 8),
    "tokenizer": lambda model: model.tokenizer.add_tokens(["coffeehouse"]),
    "module removed": lambda model: model.pop(-1),
    "adapter": lambda model: model[0].auto_model.add_module("adapter", Adapter()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_changes_with_what_decides_embeddings(load, change):
    model = load()
    before = identity(model)
    assert identity(model) == before
    CHANGES[change](model)
    assert identity(model) != before


def test_it_is_the_same_for_the_same_model(load, monkeypatch):
    """Whatever the model was last used for, whichever version of the libraries prints it, and adjusted too."""
    before = identity(load())
    model = load()
    model.encode(["coffee"])  # which sets the tokenizer's padding
    model.train()
    model.prompts["passage"] = ""  # which newer versions add, and which prompts nothing
    model[0].auto_model.config.transformers_version = "99"
    model[0].auto_model.config._attn_implementation = "eager"
    monkeypatch.setattr(torch.nn.Module, "__repr__", lambda _: pytest.fail("a printed model is no identity"))
    assert identity(model) == before
    assert identity(adjust(load())) == identity(adjust(load())) != before


def test_it_is_computed_once(load, monkeypatch):
    model = load()
    before = identity(model)
    monkeypatch.setattr(room, "_hash", lambda *_: pytest.fail("hashed again"))
    assert identity(model) == before


def test_settings_with_their_default_value_do_not_count(load):
    """So that one which a later version of a library adds does not make another model of it."""
    model = load()
    before = identity(model)
    pooling = type(model[1])
    keys = pooling.config_keys
    try:
        pooling.config_keys = [key for key in keys if key != "include_prompt"]
        assert identity(model) == before
    finally:
        pooling.config_keys = keys
