"""Tiny seeded encoders with real tokenizers, built once, saved to a folder and loaded from it like any other."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub: no test may reach for a network

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from whymatch.models import packaged

THREADS = torch.get_num_threads()
torch.set_num_threads(1)  # tiny models only lose by more

CORPUS = [
    "The coffee is not good.",
    "This is bad coffee, and nobody drank it.",
    "A man is slicing bread in the kitchen; a woman isn't.",
    "Two dogs run across the snowy field towards a child.",
    "Stocks fell on Monday as investors feared another rate rise.",
]
SPECIAL = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "mpnet": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "[UNK]", "mask": "<mask>"},
}


def build_tokenizer(kind: str):
    """WordPiece for BERT and MPNet, byte-level BPE for RoBERTa, whose <s> has the id 0."""
    from transformers import PreTrainedTokenizerFast

    special = SPECIAL[kind]
    if kind == "roberta":
        tokenizer = Tokenizer(models.BPE(unk_token=special["unk"]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=list(special.values()), initial_alphabet=alphabet)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token=special["unk"]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(special.values()))
    tokenizer.train_from_iterator(CORPUS, trainer)
    ends = [(special[name], tokenizer.token_to_id(special[name])) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special['cls']} $A {special['sep']}", special_tokens=ends
    )
    names = {f"{name}_token": token for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=40, **names)


def build(folder: Path, kind: str = "bert", *, normalize: bool = True, similarity: str = "cosine") -> Path:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel, RobertaConfig, RobertaModel

    config_class, model_class = {
        "bert": (BertConfig, BertModel),
        "roberta": (RobertaConfig, RobertaModel),
        "mpnet": (MPNetConfig, MPNetModel),
    }[kind]
    tokenizer = build_tokenizer(kind)
    torch.manual_seed(0)
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=44,
        initializer_range=0.4,  # large enough for the path to be curved
        pad_token_id=tokenizer.pad_token_id,
    )
    backbone = folder / "backbone"
    model_class(config).save_pretrained(backbone)
    tokenizer.save_pretrained(backbone)
    modules = [Transformer(str(backbone)), Pooling(16, "mean")]
    model = SentenceTransformer(
        modules=modules + [Normalize()] * normalize, similarity_fn_name=similarity, device="cpu"
    )
    model.save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each tiny model."""
    kinds = {kind: build(tmp_path_factory.mktemp(kind), kind) for kind in SPECIAL}
    dot = build(tmp_path_factory.mktemp("dot"), normalize=False, similarity="dot")
    return {**kinds, "dot": dot}


@pytest.fixture
def load(folders: dict[str, Path]):
    """Load a fresh copy of a tiny model; "bert", "roberta", "mpnet" or "dot" (BERT, not normalized)."""
    from sentence_transformers import SentenceTransformer

    def loader(kind: str = "bert", dtype: torch.dtype = torch.float32):
        return SentenceTransformer(str(folders[kind]), device="cpu").to(dtype)

    return loader


@pytest.fixture(scope="module")
def minilm():
    """The packaged all-MiniLM-L6-v2."""
    if packaged() is None:
        pytest.skip("the packaged model is not installed: pip install 'whymatch[model]'")
    from whymatch.models import load

    torch.set_num_threads(THREADS)
    yield load(None, "cpu")[0]
    torch.set_num_threads(1)
