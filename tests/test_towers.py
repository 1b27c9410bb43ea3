"""Two towers: queries and documents, texts and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import zoo
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from whymatch import Explainer

PIL = pytest.importorskip("PIL.Image")

QUERY, DOCUMENT = "bad coffee", "This is bad coffee, and nobody drank it."


@pytest.fixture(scope="module")
def asymmetric(tmp_path_factory):
    """Different architectures, poolings and tokenizers for queries and documents."""
    folder = tmp_path_factory.mktemp("router")
    torch.manual_seed(0)
    query = [Transformer(str(zoo.backbone(folder / "query", "bert"))), Pooling(16, "mean"), Dense(16, 12), Normalize()]
    document = [
        Transformer(str(zoo.backbone(folder / "document", "roberta"))),
        Pooling(16, "cls"),
        Dense(16, 12),
        Normalize(),
    ]
    router = Router.for_query_document(query_modules=query, document_modules=document)
    SentenceTransformer(modules=[router], device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize("layer", [0, 1, 3, -1])
def test_query_and_document_go_their_own_ways(asymmetric, layer):
    model = SentenceTransformer(str(asymmetric), device="cpu")
    explainer = Explainer(model, layer=layer, tolerance=1e-6)
    why = explainer.explain(QUERY, DOCUMENT)
    expected = float(model.similarity(model.encode_query(QUERY), model.encode_document(DOCUMENT)))
    assert why.score == pytest.approx(expected, abs=1e-6)
    assert why.error <= 1e-5
    assert why.tokens_a[0] == "[CLS]"
    assert why.tokens_b[0] == "<s>"
    turned = explainer.explain(DOCUMENT, QUERY)
    assert turned.score != pytest.approx(expected, abs=1e-4)
    a, b = explainer.decompose([QUERY], task="query")[0], explainer.decompose([DOCUMENT], task="document")[0]
    np.testing.assert_allclose(explainer.pair(a, b).matrix, why.matrix, atol=1e-5)


def test_one_text_as_query_and_as_document(asymmetric):
    why = Explainer(SentenceTransformer(str(asymmetric), device="cpu"), layer=1).explain(QUERY, QUERY)
    assert why.tokens_a != why.tokens_b
    assert why.error < 1e-3


def test_defaults_suit_the_tower_with_fewer_blocks(asymmetric):
    model = SentenceTransformer(str(asymmetric), device="cpu")
    encoder = model[0].sub_modules["document"][0].auto_model.encoder
    encoder.layer = encoder.layer[:1]
    for detail in ("fine", "fast"):
        explainer = Explainer(model, detail=detail)
        assert explainer.settings.layer == 2
        assert explainer.explain(QUERY, DOCUMENT).relative_error <= 1e-3


def test_routes_of_other_names_are_found_by_their_tasks(tmp_path):
    torch.manual_seed(0)
    modules = {
        name: [Transformer(str(zoo.backbone(tmp_path / name, kind))), Pooling(16, "mean")]
        for name, kind in (("q", "bert"), ("d", "roberta"))
    }
    mappings = {("query", "text"): "q", ("document", "text"): "d"}
    model = SentenceTransformer(modules=[Router(modules, default_route="d", route_mappings=mappings)], device="cpu")
    why = Explainer(model, layer=1, tolerance=1e-6).explain(QUERY, DOCUMENT)
    expected = float(model.similarity(model.encode_query(QUERY), model.encode_document(DOCUMENT)))
    assert why.score == pytest.approx(expected, abs=1e-6)
    assert why.error <= 1e-5


@pytest.mark.parametrize("default", ["document", None])
def test_a_router_behind_one_transformer(tmp_path, default):
    torch.manual_seed(0)
    routes = {"query": [Dense(16, 8)], "document": [Dense(16, 8)]}
    router = Router(routes, default_route=default, allow_empty_key=default is not None)
    model = SentenceTransformer(
        modules=[Transformer(str(zoo.backbone(tmp_path, "bert"))), Pooling(16, "mean"), router, Normalize()],
        device="cpu",
    )
    why = Explainer(model, layer=1, tolerance=1e-6).explain(QUERY, DOCUMENT)
    expected = float(model.similarity(model.encode_query(QUERY), model.encode_document(DOCUMENT)))
    assert why.score == pytest.approx(expected, abs=1e-6)
    assert why.error <= 1e-5


def clip(folder: Path, kind: str) -> Path:
    """A tiny CLIP or SigLIP with a real processor: pictures of 32 × 32 in patches of 8."""
    import transformers

    tokenizer = zoo.build_tokenizer("clip" if kind == "clip" else "t5", 20)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": 0}
    text = sizes | ends | {"vocab_size": len(tokenizer), "max_position_embeddings": 20}
    vision = sizes | {"num_hidden_layers": 3, "image_size": 32, "patch_size": 8}
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
        model = transformers.CLIPModel(config)
        pictures = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
        processor = transformers.CLIPProcessor(pictures, tokenizer)
    else:
        config = transformers.SiglipConfig(text_config=text | {"projection_size": 16}, vision_config=vision)
        model = transformers.SiglipModel(config)
        pictures = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
        processor = transformers.SiglipProcessor(pictures, tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(folder / "backbone")
    processor.save_pretrained(folder / "backbone")
    SentenceTransformer(modules=[Transformer(str(folder / "backbone"))], device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module", params=["clip", "siglip"])
def sighted(request, tmp_path_factory):
    return SentenceTransformer(str(clip(tmp_path_factory.mktemp(request.param), request.param)), device="cpu")


def picture(seed: int, size=(48, 40)):
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    return PIL.fromarray(pixels).resize(size)


@pytest.mark.parametrize("layer", [0, 1, 2, -1])
def test_text_and_picture(sighted, layer):
    image = picture(0)
    before = sighted.encode([image])
    why = Explainer(sighted, layer=layer, tolerance=1e-6).explain("bad coffee", image)
    assert why.score == pytest.approx(
        float(sighted.similarity(sighted.encode("bad coffee"), sighted.encode(image))), abs=1e-6
    )
    assert why.error <= 1e-5
    patches = [i for i, kind in enumerate(why.kinds_b) if kind == "patch"]
    assert len(patches) == 16
    assert why.matrix.shape == (len(why.tokens_a), len(why.tokens_b))
    assert why.units == ("token", "patch")
    assert why.boxes_a is None
    assert why.tokens_b[patches[0]] == "0,0"
    assert why.tokens_b[-1] == "3,3"
    assert (sighted.encode([image]) == before).all()


def test_parts_that_name_pictures_are_not_opened(sighted):
    explainer = Explainer(sighted, layer=1, divisions=4)
    for text in ("A dog. http://0/c.jpg", "http://0/c.jpg http://0/d.jpg"):
        why = explainer.explain("dogs", text, groups=(None, [(0, text.index(" ")), (text.index(" ") + 1, len(text))]))
        assert why.error <= 1e-4


def test_pictures_with_each_other(sighted):
    image, second = picture(0), picture(1)
    why = Explainer(sighted, layer=1, tolerance=1e-6).explain(image, second)
    assert why.error <= 1e-5
    assert why.score == pytest.approx(
        float(sighted.similarity(sighted.encode(image), sighted.encode(second))), abs=1e-6
    )
    assert why.words().matrix.shape == why.matrix.shape
    again = type(why).from_dict(why.to_dict())
    assert again.boxes_a == why.boxes_a
    (dec,) = Explainer(sighted, layer=1).decompose([image])
    assert dec.contributions.shape[0] == len(why.tokens_a)


def test_boxes_are_those_of_the_picture_as_it_was_given(sighted):
    why = Explainer(sighted, layer=-1).explain(picture(0, (96, 64)), picture(0, (64, 64)))
    square = [box for box, kind in zip(why.boxes_b, why.kinds_b, strict=True) if kind == "patch"]
    assert square[0] == (0, 0, 16, 16)
    assert square[-1] == (48, 48, 64, 64)
    wide = [box for box, kind in zip(why.boxes_a, why.kinds_a, strict=True) if kind == "patch"]
    if type(sighted[0].auto_model).__name__ == "CLIPModel":  # scaled to 48 × 32, of which the middle is kept
        assert wide[0] == (16, 0, 32, 16)
        assert wide[-1] == (64, 48, 80, 64)
    else:  # squeezed
        assert wide[0] == (0, 0, 24, 16)
        assert wide[-1] == (72, 48, 96, 64)


def test_paths_of_pictures(sighted, tmp_path):
    path = tmp_path / "cat.png"
    picture(0).save(path)
    explainer = Explainer(sighted, layer=-1)
    why = explainer.explain("coffee", path)
    assert why.text_b == "cat.png"
    assert (why.matrix == explainer.explain("coffee", PIL.open(path)).matrix).all()
    with pytest.raises(FileNotFoundError, match=r"there is no picture .*dog.png"):
        explainer.explain("coffee", tmp_path / "dog.png")
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text.png' cannot be read as a picture"):
        explainer.explain("coffee", tmp_path / "text.png")
    with pytest.raises(ValueError, match=r"names a file, which this model would open: give a Pillow image or a Path"):
        explainer.explain("coffee", "https://example.org/cat.png")


def test_a_text_model_reads_no_pictures(load):
    with pytest.raises(TypeError, match="reads text, not pictures"):
        Explainer(load(), layer=1).explain("coffee", picture(0))


def test_a_layer_that_one_tower_has_not(sighted):
    explainer = Explainer(sighted, layer=2)
    assert explainer.num_layers == 2
    assert explainer.explain("coffee", picture(0)).layer == 2
    with pytest.raises(ValueError, match="layer 3 is out of range; this model has 2 blocks"):
        Explainer(sighted, layer=3)


def test_an_adjusted_model_of_two_towers(asymmetric):
    from whymatch.training import adjust

    adjusted = adjust(SentenceTransformer(str(asymmetric), device="cpu"))
    why = Explainer(adjusted, layer=1, tolerance=1e-5, fold_reference=False).explain(QUERY, DOCUMENT)
    expected = adjusted.similarity(adjusted.encode_query(QUERY), adjusted.encode_document(DOCUMENT))
    assert why.score == pytest.approx(float(expected), abs=1e-6)
    assert why.error <= 1e-5
    assert max(np.abs(why.effects_a).max(), np.abs(why.effects_b).max(), abs(why.constant)) < 1e-6


def test_an_adjusted_model_of_texts_and_pictures(sighted):
    from whymatch.training import adjust

    # CLIP ends a text with its padding token, and finds the end by it: there it is no reference.
    adjusted, image = adjust(sighted, reference="coffee"), picture(0)
    why = Explainer(adjusted, layer=1, tolerance=1e-5, fold_reference=False).explain("bad coffee", image)
    expected = adjusted.similarity(adjusted.encode("bad coffee"), adjusted.encode(image))
    assert why.score == pytest.approx(float(expected), abs=1e-6)
    assert why.error <= 1e-5
    assert max(np.abs(why.effects_a).max(), np.abs(why.effects_b).max(), abs(why.constant)) < 1e-6
    if type(sighted[0].auto_model).__name__ == "CLIPModel":
        with pytest.raises(TypeError, match="reads its reference at another place than the text"):
            Explainer(adjust(sighted), layer=1).explain("bad coffee", image)
    together = adjusted.encode([image, picture(1), picture(2)])
    np.testing.assert_allclose(together[0], adjusted.encode(image), atol=1e-6)
