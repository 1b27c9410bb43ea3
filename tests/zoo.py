"""Tiny seeded encoders of every common kind: real tokenizers, real configurations, saved to and loaded from folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The coffee is not good.",
    "This is bad coffee, and nobody drank it.",
    "A man is slicing bread in the kitchen; a woman isn't.",
    "Two dogs run across the snowy field towards a child.",
    "Stocks fell on Monday as investors feared another rate rise.",
]

# What each kind of tokenizer calls its special tokens; the order is that of their ids.
SPECIAL = {
    "wordpiece": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "bytes": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "mpnet": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "[UNK]", "mask": "<mask>"},
    "unigram": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
    "llama": {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"},
    "qwen": {"pad": "<|endoftext|>", "eos": "<|im_end|>"},
    "clip": {"bos": "<|startoftext|>", "eos": "<|endoftext|>"},
}
TEMPLATES = {"t5": "$A </s>", "llama": "<s> $A </s>", "qwen": "$A <|endoftext|>"}


def _train(tokenizer: Tokenizer, trainer: Any, added: list[str]) -> Any:
    """The model of a tokenizer, the same in every process: two of the trainers go through hash tables."""
    if isinstance(tokenizer.model, models.WordPiece):
        words = Tokenizer(models.BPE())
        words.normalizer, words.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        words.train_from_iterator(CORPUS, trainer)
        pieces = sorted(words.get_vocab(), key=words.token_to_id)
        vocabulary = [*added, *pieces, *(f"##{piece}" for piece in pieces if len(piece) == 1)]
        return models.WordPiece({piece: n for n, piece in enumerate(vocabulary)}, unk_token=tokenizer.model.unk_token)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if isinstance(tokenizer.model, models.Unigram):
        state = json.loads(tokenizer.to_str())["model"]
        first, rest = state["vocab"][: len(added)], state["vocab"][len(added) :]
        return models.Unigram([(piece, round(score, 2)) for piece, score in first + sorted(rest)], state["unk_id"])
    return tokenizer.model


def build_tokenizer(kind: str, length: int = 40) -> Any:
    """WordPiece, byte-level BPE, Unigram with ▁, and BPE with ▁ and bytes to fall back on."""
    from transformers import PreTrainedTokenizerFast

    special = SPECIAL[kind]
    added = list(dict.fromkeys(special.values()))
    trainer: Any
    if kind in ("bytes", "qwen", "clip"):
        tokenizer = Tokenizer(models.BPE(unk_token=special.get("unk")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=added, initial_alphabet=alphabet)
    elif kind in ("unigram", "t5"):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=added, unk_token="<unk>")
    elif kind == "llama":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        every = added + [f"<0x{n:02X}>" for n in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=every)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token=special["unk"]))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.BpeTrainer(vocab_size=200)
    tokenizer.model = _train(tokenizer, trainer, added)
    if kind == "clip":
        template = f"{special['bos']} $A {special['eos']}"
    else:
        template = TEMPLATES.get(kind) or f"{special['cls']} $A {special['sep']}"
    ends = [(token, tokenizer.token_to_id(token)) for token in added]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    names = {f"{name}_token": token for name, token in special.items()}
    if kind == "clip":
        names["pad_token"] = special["eos"]  # as OpenAI's has it
    side = {"padding_side": "left"} if kind in ("llama", "qwen") else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **names, **side)


SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
CAUSAL = SIZES | {"initializer_range": 0.2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}

# kind -> (tokenizer, configuration, model, what differs, pooling)
ARCHITECTURES: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "bert": ("wordpiece", "BertConfig", "BertModel", SIZES, "mean"),
    "roberta": ("bytes", "RobertaConfig", "RobertaModel", SIZES, "mean"),
    "xlm-roberta": ("unigram", "XLMRobertaConfig", "XLMRobertaModel", SIZES, "cls"),
    "distilbert": (
        "wordpiece",
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32, "initializer_range": 0.2},
        "mean",
    ),
    "mpnet": ("mpnet", "MPNetConfig", "MPNetModel", SIZES, "mean"),
    "albert": ("unigram", "AlbertConfig", "AlbertModel", SIZES | {"embedding_size": 8}, "mean"),
    "electra": ("wordpiece", "ElectraConfig", "ElectraModel", SIZES | {"embedding_size": 8}, "cls"),
    "deberta-v2": (
        "unigram",
        "DebertaV2Config",
        "DebertaV2Model",
        SIZES
        | {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
        },
        "mean",
    ),
    "modernbert": (
        "bytes",
        "ModernBertConfig",
        "ModernBertModel",
        SIZES | {"local_attention": 4, "global_attn_every_n_layers": 2, "reference_compile": False},
        "cls",
    ),
    "t5-relu": (
        "t5",
        "T5Config",
        "T5EncoderModel",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2, "initializer_factor": 1.0},
        "mean",
    ),
    "t5": (
        "t5",
        "T5Config",
        "T5EncoderModel",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 2, "feed_forward_proj": "gated-gelu"},
        "mean",
    ),
    "qwen3": ("qwen", "Qwen3Config", "Qwen3Model", CAUSAL, "lasttoken"),
    "gemma3": (
        "llama",
        "Gemma3TextConfig",
        "Gemma3TextModel",
        CAUSAL | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "mean",
    ),
    "mistral": ("llama", "MistralConfig", "MistralModel", CAUSAL | {"sliding_window": 4}, "lasttoken"),
    "llama": ("llama", "LlamaConfig", "LlamaModel", CAUSAL, "lasttoken"),
}

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED_LATENTS = {
    "first_k_dense_replace": 1,
    "head_dim": 4,
    "kv_lora_rank": 8,
    "n_group": 2,
    "n_routed_experts": 4,
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "topk_group": 1,
    "v_head_dim": 8,
}

# Tokens choose their experts: derivatives are right, but paths jump where another expert is chosen.
MIXTURES: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "qwen3-moe": ("qwen", "Qwen3MoeConfig", "Qwen3MoeModel", CAUSAL | EXPERTS, "lasttoken"),
    "mixtral": ("llama", "MixtralConfig", "MixtralModel", CAUSAL | EXPERTS, "lasttoken"),
    "gpt-oss": ("qwen", "GptOssConfig", "GptOssModel", CAUSAL | EXPERTS, "lasttoken"),
    "deepseek-v3": ("llama", "DeepseekV3Config", "DeepseekV3Model", CAUSAL | EXPERTS | SHARED_LATENTS, "lasttoken"),
}

# Exact too, but rare: tested less.
RARE: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "big-bird": ("unigram", "BigBirdConfig", "BigBirdModel", SIZES | {"attention_type": "original_full"}, "mean"),
    "camembert": ("unigram", "CamembertConfig", "CamembertModel", SIZES, "mean"),
    "convbert": (
        "wordpiece",
        "ConvBertConfig",
        "ConvBertModel",
        SIZES | {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3},
        "mean",
    ),
    "data2vec-text": ("bytes", "Data2VecTextConfig", "Data2VecTextModel", SIZES, "mean"),
    "ernie": ("wordpiece", "ErnieConfig", "ErnieModel", SIZES, "cls"),
    "eurobert": ("bytes", "EuroBertConfig", "EuroBertModel", CAUSAL, "mean"),
    "fnet": ("unigram", "FNetConfig", "FNetModel", SIZES, "mean"),
    "gemma2": (
        "llama",
        "Gemma2Config",
        "Gemma2Model",
        # Soft caps low enough to bend the attention scores.
        CAUSAL | {"sliding_window": 4, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
        "mean",
    ),
    "gpt2": ("bytes", "GPT2Config", "GPT2Model", {"n_embd": 16, "n_layer": 3, "n_head": 2}, "lasttoken"),
    "gte": ("wordpiece", "GteConfig", "GteModel", SIZES, "cls"),
    "lfm2": (
        "llama",
        "Lfm2Config",
        "Lfm2Model",
        CAUSAL | {"layer_types": ["conv", "full_attention", "conv"]},
        "lasttoken",
    ),
    "longformer": ("bytes", "LongformerConfig", "LongformerModel", SIZES | {"attention_window": 4}, "mean"),
    "mamba": (
        "qwen",
        "MambaConfig",
        "MambaModel",
        {"hidden_size": 16, "num_hidden_layers": 3, "state_size": 4, "initializer_range": 0.2},
        "lasttoken",
    ),
    "megatron-bert": ("wordpiece", "MegatronBertConfig", "MegatronBertModel", SIZES, "mean"),
    "mpt": ("bytes", "MptConfig", "MptModel", {"d_model": 16, "n_layers": 3, "n_heads": 2}, "lasttoken"),
    "nomic-bert": (
        "wordpiece",
        "NomicBertConfig",
        "NomicBertModel",
        SIZES | {"head_dim": 8, "num_key_value_heads": 2},
        "mean",
    ),
    "olmo2": ("qwen", "Olmo2Config", "Olmo2Model", CAUSAL, "lasttoken"),
    "phi3": ("llama", "Phi3Config", "Phi3Model", CAUSAL, "lasttoken"),
    "qwen2": ("qwen", "Qwen2Config", "Qwen2Model", CAUSAL, "lasttoken"),
    "roformer": ("wordpiece", "RoFormerConfig", "RoFormerModel", SIZES | {"embedding_size": 16}, "mean"),
    "rembert": ("unigram", "RemBertConfig", "RemBertModel", SIZES | {"input_embedding_size": 8}, "mean"),
}

# Halves its texts from stage to stage; the tokens of a text are there only in the first.
HALVING: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "funnel": (
        "wordpiece",
        "FunnelConfig",
        "FunnelModel",
        {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32, "block_sizes": [1, 1, 1], "num_decoder_layers": 1},
        "mean",
    ),
}

# These cannot be explained below their output, or not at all.
REFUSED: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "bloom": ("llama", "BloomConfig", "BloomModel", {"hidden_size": 16, "n_layer": 3, "n_head": 2}, "lasttoken"),
    "mra": ("bytes", "MraConfig", "MraModel", SIZES | {"block_per_row": 1}, "mean"),
    "recurrent-gemma": (
        "llama",
        "RecurrentGemmaConfig",
        "RecurrentGemmaModel",
        CAUSAL | {"lru_width": 16, "attention_window_size": 8, "block_types": ["recurrent", "recurrent", "attention"]},
        "lasttoken",
    ),
    "squeezebert": (
        "wordpiece",
        "SqueezeBertConfig",
        "SqueezeBertModel",
        SIZES
        | {"embedding_size": 16}
        | {f"{part}_groups": 2 for part in ("q", "k", "v", "intermediate", "output")}
        | {"post_attention_groups": 1},
        "mean",
    ),
    "xlnet": (
        "unigram",
        "XLNetConfig",
        "XLNetModel",
        {"d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 32},
        "mean",
    ),
    "yoso": ("bytes", "YosoConfig", "YosoModel", SIZES | {"use_expectation": True}, "mean"),
    "yoso-hash": ("bytes", "YosoConfig", "YosoModel", SIZES | {"use_expectation": False}, "mean"),
}

EVERY = ARCHITECTURES | MIXTURES | RARE | HALVING | REFUSED
UNPOSITIONED = ("t5", "t5-relu", "xlnet")  # which have no table of positions
CAUSAL_KINDS = ("qwen3", "gemma3", "mistral", "llama", *MIXTURES, *RARE, "bloom", "recurrent-gemma")
RELU = ("t5-relu",)  # paths with kinks, where nodes gain little


def backbone(folder: Path, kind: str, length: int = 40, **changes: Any) -> Path:
    """The transformer alone, in a folder."""
    import transformers

    name, config_name, model_name, sizes, _ = EVERY[kind]
    tokenizer = build_tokenizer(name, length)
    torch.manual_seed(0)
    positions = {} if kind in UNPOSITIONED else {"max_position_embeddings": length + 4}
    sizes = positions | sizes | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id} | changes
    if not kind.startswith("t5"):
        sizes.setdefault("initializer_range", 0.4)  # large enough for the path to be curved
    for end in ("bos", "eos", "cls", "sep"):
        token = getattr(tokenizer, f"{end}_token_id")
        if token is not None:
            sizes[f"{end}_token_id"] = token
    config = getattr(transformers, config_name)(**sizes)
    model = getattr(transformers, model_name)(config).eval()
    if kind in CAUSAL_KINDS:  # new ones have a zero vector for padding, which trained ones have not
        with torch.no_grad():
            model.get_input_embeddings().weight[tokenizer.pad_token_id].normal_(std=0.4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build(
    folder: Path,
    kind: str = "bert",
    *,
    pooling: str | tuple[str, ...] | None = None,
    between: Any = (),
    normalize: bool = True,
    similarity: str = "cosine",
    length: int = 40,
    **options: Any,
) -> Path:
    """A SentenceTransformer in a folder: transformer, pooling, whatever is ``between``, Normalize."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    transformer = Transformer(str(backbone(folder / "backbone", kind, length)))
    pooled = Pooling(16, pooling or EVERY[kind][4], **options.pop("pooling_options", {}))
    modules = [transformer, pooled, *(between(pooled) if callable(between) else between)]
    model = SentenceTransformer(
        modules=modules + [Normalize()] * normalize, similarity_fn_name=similarity, device="cpu", **options
    )
    model.save(str(folder / "model"))
    return folder / "model"


PROMPTS = {"query": "bread; ", "document": "this is ", "other": "the snowy "}


def prompted(folder: Path, **options: Any) -> Path:
    """The folder of a model that has prompts for queries and documents."""
    return build(folder, prompts=PROMPTS, **options)


def asymmetric(folder: Path) -> Any:
    """A model that reads queries with one encoder and documents with another."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(0)
    routes = {
        name: [Transformer(str(backbone(folder / kind, kind))), Pooling(16, "mean")]
        for name, kind in (("query", "bert"), ("document", "roberta"))
    }
    return SentenceTransformer(modules=[Router(routes, default_route="document")], device="cpu")
