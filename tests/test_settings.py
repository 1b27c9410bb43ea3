"""What a user may ask for, and the warning where a result misses it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from whymatch import Explainer, ToleranceWarning
from whymatch.settings import Settings, check_layer, check_settings, check_top, warn_missed

SHAPLEY = {
    "model": "tiny",
    "reference": "nothing",
    "fold_reference": True,
    "similarity": "cosine",
    "rule": "gauss",
    "steps": None,
    "tolerance": 1e-3,
    "least_tolerance": 1e-6,
    "path": "shapley",
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layer": 4}, ValueError, r"layer 4 is out of range; this model has 3 blocks: give 0 .* to 3 .*, or -1"),
        ({"layer": -5}, ValueError, r"layer -5 is out of range"),
        ({"layer": 1.5}, ValueError, r"layer 1.5 is out of range"),
        ({"layer": True}, ValueError, r"layer True is out of range"),
        ({"tolerance": 0}, ValueError, r"tolerance=0 cannot be taken; give 1e-06, .* to 1"),
        ({"tolerance": -1}, ValueError, r"tolerance=-1 cannot be taken"),
        ({"tolerance": 1e-9}, ValueError, r"tolerance=1e-09 cannot be taken; give 1e-06, .* to 1"),
        ({"tolerance": float("nan")}, ValueError, r"tolerance=nan cannot be taken"),
        ({"tolerance": "low"}, ValueError, r"tolerance='low' cannot be taken"),
        ({"steps": 0}, ValueError, r"steps=0 is not a number of nodes; give 1 to 2,048"),
        ({"steps": 5000}, ValueError, r"steps=5000 is not a number of nodes"),
        ({"steps": 2.5}, ValueError, r"steps=2.5 is not a number of nodes"),
        ({"rule": "simpson"}, ValueError, r"rule='simpson' is not known"),
        ({"similarity": "euclidean"}, ValueError, r"similarity='euclidean' is not known; choose 'cosine', 'dot'"),
        ({"reference": ""}, ValueError, r"reference='' is an empty text"),
        ({"groups": "letters"}, ValueError, r"groups='letters' is not known"),
        ({"device": "meta"}, ValueError, r"device='meta', but the model given is on 'cpu' and is never moved"),
    ],
)
def test_bad_settings_are_named(load, change, error, message):
    with pytest.raises(error, match=message):
        Explainer(load(), **change)


def test_layers_count_from_both_ends(load):
    model = load()
    assert Explainer(model).num_layers == 3
    assert Explainer(model, layer=-1).settings.layer == 3
    assert Explainer(model, layer=-4).settings.layer == 0
    assert Explainer(model, layer=np.int64(2)).settings.layer == 2


def test_the_settings_make_the_same_explainer_again(folders):
    from whymatch.settings import Settings

    explainer = Explainer(folders("bert"), layer=1, blocks="encoder.layer", tolerance=1e-2)
    assert explainer.settings.blocks == ("encoder.layer",)
    again = Explainer.with_settings(explainer.settings)
    assert again.settings == explainer.settings
    assert Settings(**json.loads(json.dumps(asdict(explainer.settings)))) == explainer.settings


def test_layers_are_counted_from_the_input():
    assert [check_layer(layer, 3) for layer in (0, 3, -1, -4, np.int64(2))] == [0, 3, 3, 0, 2]
    for layer in (4, -5, 1.0, True):
        with pytest.raises(ValueError, match=rf"layer {layer} is out of range; this model has 3 blocks"):
            check_layer(layer, 3)


def test_a_number_of_things_to_list():
    assert check_top(np.int32(3)) == 3
    assert check_top(0, least=0) == 0
    for top in (0, True, 2.0, "3"):
        with pytest.raises(ValueError, match=r"--top=.* is not a number of pairs; give 1 or more"):
            check_top(top, "--top", "pairs")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 1}, "samples=1 is not a number of texts to embed; give 2 or more"),
        ({"budget": 1}, "budget=1 is not a number of texts to embed"),
        ({"mask": 7}, "mask=7 is not a text"),
        ({"path": "winding"}, "path='winding' is not known; choose 'straight', 'relay'"),
        ({"special": "drop"}, "special='drop' is not known; choose 'keep', 'share', 'base'"),
        ({"similarity": "manhattan"}, "similarity='manhattan' is not known"),
        ({"tolerance": 1e-8}, "tolerance=1e-08 cannot be taken; give 1e-06, .* to 1"),
    ],
)
def test_settings_that_cannot_be_met_are_named(change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        check_settings(**SHAPLEY | change)
    assert check_settings(**SHAPLEY).path == "shapley"


def test_segments_of_a_path():
    settings = check_settings(**SHAPLEY)
    segments = [replace(settings, path=path).segment for path in ("straight", "relay", "relay-2", "relay-3", "secant")]
    assert segments == [None, 1, 2, 3, None]


def test_the_tolerance_of_a_text_bounds_that_of_a_pair():
    tolerance = check_settings(**SHAPLEY).text_tolerance
    assert 2 * tolerance + tolerance**2 == pytest.approx(1e-3)


def test_a_missed_tolerance_is_said_once_with_its_cause():
    settings = Settings("tiny", 1, "pad", True, "cosine", "gauss", None, 1e-3)
    with pytest.warns(
        ToleranceWarning, match=r"2 of 3 pairs miss tolerance=0.001, .* 5.0e-02, at the bound of 1024"
    ) as seen:
        assert warn_missed([(1e-2, 8), (5e-2, 1024), (1e-4, 8)], 1e-3, settings, "pairs")
    assert len(seen) == 1
    with pytest.warns(ToleranceWarning, match="although 8 nodes are enough: this is the rounding of the model's own"):
        assert warn_missed([(float("nan"), 8)], 1e-3, settings, "pairs")
    assert not warn_missed([(1e-3, 8)], 1e-3, settings, "pairs")
    assert not warn_missed([(1.0, 8)], 1e-3, replace(settings, steps=8), "pairs")  # as many as were asked for
