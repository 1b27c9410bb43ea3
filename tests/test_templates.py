"""Models that read a text inside a chat template."""

from __future__ import annotations

import pytest
import zoo
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from whymatch import Explainer

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


CHAT = "{% for m in messages %}<|im_end|>{{ m['role'] }}\n{{ m['content'] TRIM }}<|im_end|>\n{% endfor %}<|endoftext|>"


def chat_model(folder, template, pooling="mean"):
    from sentence_transformers.base.modules import Transformer

    place = zoo.backbone(folder, "qwen3")
    tokenizer = zoo.build_tokenizer("qwen")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(place)
    model = SentenceTransformer(modules=[Transformer(str(place)), Pooling(16, pooling)], device="cpu")
    if "message" not in model.modalities:
        pytest.skip("this sentence-transformers does not read texts through the template")
    return model


@pytest.mark.parametrize("trim", ["", "| trim"])
def test_a_chat_template_is_read_and_the_text_found_in_it(tmp_path, trim):
    model = chat_model(tmp_path, CHAT.replace("TRIM", trim))
    for text in ("bad coffee", "user", "  in the kitchen ", "café 🙂"):
        why = Explainer(model, layer=1).explain(text, PAIR[0], prompt=("A man", None))
        expected = model.similarity(model.encode(text, prompt="A man"), model.encode(PAIR[0]))
        assert why.score == pytest.approx(float(expected), abs=1e-5)
        assert why.relative_error <= 1e-3
        spans = [span for span, kind in zip(why.offsets_a, why.kinds_a, strict=True) if kind == "text"]
        assert "".join(dict.fromkeys(text[low:high] for low, high in spans)).strip() == text.strip()
        prompt = [token for token, kind in zip(why.tokens_a, why.kinds_a, strict=True) if kind == "prompt"]
        assert "".join(prompt).replace("Ġ", "") == "Aman"
        assert why.kinds_a[0] == why.kinds_a[-1] == "special"
        assert why.tokens_a[-1] == "<|endoftext|>"
        names = [name for name in why.words().tokens_b if name in ("coffee", "good")]
        assert names == ["coffee", "good"]


def test_a_long_text_in_a_chat_template_is_cut_before_the_template_ends(tmp_path):
    model = chat_model(tmp_path, CHAT.replace("TRIM", ""), "lasttoken")
    text = "coffee " * 60
    why = Explainer(model, layer=2).explain(text, "bread")
    assert why.truncated_a
    assert len(why.tokens_a) == model.max_seq_length
    assert why.tokens_a[-1] == "<|endoftext|>"
    assert why.kinds_a[-3:] == ("special",) * 3
    assert why.relative_error <= 1e-3


def test_a_chat_template_that_changes_the_text_is_refused(tmp_path):
    model = chat_model(tmp_path, CHAT.replace("TRIM", "| upper"))
    with pytest.raises(TypeError, match=r"chat template changes the text, .*'a'; give the model a modality_config"):
        Explainer(model)
