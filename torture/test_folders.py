"""Hostile folders: no code of theirs runs, nothing outside is written, and what cannot be used is refused clearly."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from attack import Command, Ended, Tally, describe, is_clear, seeded, trials

from whymatch import Explainer, Explanation

PAIR = ("The coffee is not good.", "This is bad coffee.")
MEMORY = 6 * 2**30
SECONDS = 120


class Canary:
    """Code that leaves a mark where it runs: in a pickle, in a module, in a template."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.code = f"open({str(path)!r}, 'w').write('here')\n"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def replace(path: Path, content: bytes | str) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def name_class(folder: Path, name: str, path: str = "") -> None:
    """Let the list of modules name a class."""
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": path, "type": name})
    (folder / "modules.json").write_text(json.dumps(modules))


def bring_code(folder: Path, canary: Canary) -> None:
    for name in ("modeling_evil.py", "evil.py", "configuration_evil.py", "tokenization_evil.py"):
        code = canary.code + "class Evil:\n    pass\nclass EvilConfig:\n    pass\nclass EvilModel:\n    pass\n"
        (folder / name).write_text(code)


def auto_map(folder: Path, canary: Canary, **changes: Any) -> None:
    bring_code(folder, canary)
    names = {
        "AutoConfig": "configuration_evil.EvilConfig",
        "AutoModel": "modeling_evil.EvilModel",
        "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"],
    }
    edit(folder / "config.json", auto_map=names, **changes)
    edit(folder / "tokenizer_config.json", auto_map=names)


def only_pickle(folder: Path, canary: Canary, protocol: int, zipped: bool) -> None:
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    if zipped:
        torch.save({"weight": canary}, path)
    else:
        path.write_bytes(pickle.dumps(canary, protocol))


def pickles_beside(folder: Path, canary: Canary) -> None:
    """Pickles under every name that a loader might look for, beside good weights."""
    for name in (
        "pytorch_model.bin",
        "training_args.bin",
        "optimizer.pt",
        "scheduler.pt",
        "model.pkl",
        "rust_model.ot",
    ):
        (folder / name).write_bytes(pickle.dumps(canary))


def dense_pickle(folder: Path, canary: Canary) -> None:
    """A module whose weights are a pickle."""
    (folder / "2_Dense").mkdir(exist_ok=True)
    config = {
        "in_features": 16,
        "out_features": 16,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (folder / "2_Dense/config.json").write_text(json.dumps(config))
    (folder / "2_Dense/pytorch_model.bin").write_bytes(pickle.dumps(canary))
    name_class(folder, "sentence_transformers.models.Dense", "2_Dense")


def activation(folder: Path, canary: Canary) -> None:
    """A module that names its activation function, which is imported by that name."""
    dense_pickle(folder, canary)
    bring_code(folder, canary)
    edit(folder / "2_Dense/config.json", activation_function="evil.Evil")


def other_kind(folder: Path, kind: str) -> None:
    """What a folder of another kind of encoder says that it is."""
    edit(folder / "config_sentence_transformers.json", model_type=kind)


def header(folder: Path, size: int, content: bytes = b"{}") -> None:
    replace(folder / "model.safetensors", struct.pack("<Q", size) + content)


# name -> what is done to a copy of a good folder. Canaries must not be touched; the rest must be refused, or harmless.
FOLDERS: dict[str, Callable[[Path, Canary], None]] = {
    "a pickle for weights": lambda f, c: only_pickle(f, c, 2, zipped=False),
    "a pickle of protocol 4": lambda f, c: only_pickle(f, c, 4, zipped=False),
    "a zipped pickle": lambda f, c: only_pickle(f, c, 2, zipped=True),
    "pickles beside the weights": pickles_beside,
    "a module of pickled weights": dense_pickle,
    "an activation that brings code": activation,
    "auto_map": auto_map,
    "auto_map of an unknown type": lambda f, c: auto_map(f, c, model_type="evil", architectures=["EvilModel"]),
    "a module class of its own": lambda f, c: (bring_code(f, c), name_class(f, "evil.Evil")),
    "a module class of its own, dotted": lambda f, c: (bring_code(f, c), name_class(f, "modeling_evil.EvilModel")),
    "os.system for a module": lambda f, _: name_class(f, "os.system", "x"),
    "builtins.exec for a module": lambda f, _: name_class(f, "builtins.exec", "x"),
    "subprocess.Popen for a module": lambda f, _: name_class(f, "subprocess.Popen", "true"),
    "a relative class": lambda f, c: (bring_code(f, c), name_class(f, "..evil.Evil")),
    "a module without a type": lambda f, _: replace(f / "modules.json", '[{"idx": 0}]'),
    "a module path outside": lambda f, _: name_class(
        f, "sentence_transformers.models.Dense", "../../../../../../../etc"
    ),
    "an absolute module path": lambda f, _: name_class(f, "sentence_transformers.models.Dense", "/etc"),
    "an adjusted model's shift of nothing": lambda f, _: name_class(f, "whymatch.training.ReferenceShift", "9_Shift"),
    "sitecustomize beside it": lambda f, c: replace(f / "sitecustomize.py", c.code),
    "torch.py beside it": lambda f, c: replace(f / "torch.py", c.code),
    "weights are a link to a device": lambda f, _: link(f / "model.safetensors", "/dev/zero"),
    "weights are a link to nothing": lambda f, _: link(f / "model.safetensors", "nowhere"),
    "weights are a link to themselves": lambda f, _: link(f / "model.safetensors", "model.safetensors"),
    "weights are a link to a text": lambda f, _: link(f / "model.safetensors", "/etc/hostname"),
    "a configuration is a link to a device": lambda f, _: link(f / "config.json", "/dev/null"),
    "the list of modules is a link to a folder": lambda f, _: link(f / "modules.json", "/"),
    "the tokenizer is a link to a device": lambda f, _: link(f / "tokenizer.json", "/dev/null"),
    "weights are a folder": lambda f, _: ((f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()),
    "empty weights": lambda f, _: replace(f / "model.safetensors", b""),
    "half the weights": lambda f, _: replace(
        f / "model.safetensors", (f / "model.safetensors").read_bytes()[:2000]
    ),
    "weights with a header of 2^62 bytes": lambda f, _: header(f, 2**62),
    "weights with a header of 90 MB": lambda f, _: header(f, 90_000_000, b" " * 90_000_000),
    "weights with a deep header": lambda f, _: header(f, 200_000, b"[" * 200_000),
    "no weights at all": lambda f, _: (f / "model.safetensors").unlink(),
    "weights that are NaN": lambda f, _: fill(f, math.nan),
    "weights that are infinite": lambda f, _: fill(f, math.inf),
    "weights that are huge": lambda f, _: fill(f, 1e30),
    "weights that are zero": lambda f, _: fill(f, 0.0),
    "hidden size of 10^9": lambda f, _: edit(f / "config.json", hidden_size=10**9),
    "hidden size of 0": lambda f, _: edit(f / "config.json", hidden_size=0),
    "hidden size of -16": lambda f, _: edit(f / "config.json", hidden_size=-16),
    "hidden size of a text": lambda f, _: edit(f / "config.json", hidden_size="sixteen"),
    "hidden size of a list": lambda f, _: edit(f / "config.json", hidden_size=[16]),
    "two hundred blocks": lambda f, _: edit(f / "config.json", num_hidden_layers=200),
    "no blocks": lambda f, _: edit(f / "config.json", num_hidden_layers=0),
    "half a block": lambda f, _: edit(f / "config.json", num_hidden_layers=0.5),
    "no heads": lambda f, _: edit(f / "config.json", num_attention_heads=0),
    "a vocabulary of 10^12": lambda f, _: edit(f / "config.json", vocab_size=10**12),
    "an unknown architecture": lambda f, _: edit(f / "config.json", model_type="perpetual", architectures=["X"]),
    "an architecture of another kind": lambda f, _: edit(f / "config.json", model_type="wav2vec2"),
    "an unknown activation": lambda f, _: edit(f / "config.json", hidden_act="__import__('os').system('true')"),
    "eps that is NaN": lambda f, _: edit(f / "config.json", layer_norm_eps=math.nan),
    "a quantised model": lambda f, _: edit(f / "config.json", quantization_config={"quant_method": "bitsandbytes"}),
    "a deeply nested configuration": lambda f, _: replace(f / "config.json", '{"x":' * 100_000),
    "a deeply nested list of modules": lambda f, _: replace(f / "modules.json", "[" * 100_000),
    "a configuration that is a list": lambda f, _: replace(f / "config.json", "[1, 2]"),
    "a configuration of bytes": lambda f, _: replace(f / "config.json", bytes(range(256))),
    "an empty configuration": lambda f, _: replace(f / "config.json", ""),
    "a list of modules that is null": lambda f, _: replace(f / "modules.json", "null"),
    "an empty list of modules": lambda f, _: replace(f / "modules.json", "[]"),
    "a tokenizer of bytes": lambda f, _: replace(f / "tokenizer.json", bytes(range(256))),
    "a tokenizer without a vocabulary": lambda f, _: replace(f / "tokenizer.json", '{"model": {"type": "WordPiece"}}'),
    "a tokenizer of length 10^30": lambda f, _: edit(f / "tokenizer_config.json", model_max_length=10**30),
    "a tokenizer of length -1": lambda f, _: edit(f / "tokenizer_config.json", model_max_length=-1),
    "an unknown similarity": lambda f, _: edit(
        f / "config_sentence_transformers.json", similarity_fn_name="__import__"
    ),
    "a prompt that is no text": lambda f, _: edit(f / "config_sentence_transformers.json", prompts={"query": [1]}),
    "a template with code": lambda f, c: edit(
        f / "tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}" + c.code
    ),
    "it says it is a cross-encoder": lambda f, _: other_kind(f, "CrossEncoder"),
    "it says it is a sparse encoder": lambda f, _: other_kind(f, "SparseEncoder"),
    "it says it is a multi-vector encoder": lambda f, _: other_kind(f, "MultiVectorEncoder"),
}  # fmt: skip
REFUSED = ("it says it is a cross-encoder", "weights that are NaN", "weights that are inf")
MUST_REFUSE = [name for name in FOLDERS if name.startswith(REFUSED)]


def fill(folder: Path, value: float) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({name: torch.full_like(weight, value) for name, weight in weights.items()}, folder / "model.safetensors")


def explain(model: Path, place: Path) -> Ended:
    arguments = ("explain", *PAIR, "--model", model, "--layer", 2, "--quiet")
    return Command(*arguments, folder=place, memory=MEMORY).wait(SECONDS)


def judge(name: str, ended: Ended, good: Ended, canary: Canary, tally: Tally, must_refuse: bool = False) -> None:
    if canary.path.exists():
        tally.fail(f"{name}: its code ran")
        canary.path.unlink()
    elif ended.refused:
        tally.add("refused")
    elif ended.code == 0 and not must_refuse and "Traceback" not in ended.err:
        # Another configuration may be another model; what must hold is that its own sum is its own score.
        score, error = (float(value) for value in ended.out.split()[-2:])
        # The tolerance is relative to the embeddings' lengths, which the score of several vectors is far above.
        if abs(error) <= 1e-3 * max(1.0, abs(score)) and math.isfinite(score):
            tally.add("harmless" if ended.out == good.out else "another model, explained")
        elif "miss tolerance" in ended.err:
            tally.add("another model, with a warning")
        else:
            tally.fail(f"{name}: score {score}, error {error}, and no warning")
    else:
        tally.fail(f"{name}: {ended}")


@pytest.fixture(scope="module")
def good(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = explain(folder, tmp_path_factory.mktemp("good"))
    assert ended.code == 0, ended
    return ended


def test_models_by_hand(folder, good, tmp_path, tally):
    canary = Canary(tmp_path / "canary")
    for name, spoil in FOLDERS.items():
        model = tmp_path / "model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(folder, model)
        spoil(model, canary)
        judge(name, explain(model, tmp_path), good, canary, tally, name in MUST_REFUSE)
    tally.check()


def test_random_configurations(folder, good, tmp_path, tally):
    """A random value in a random place of a random JSON file."""
    rng = seeded("configurations")
    canary = Canary(tmp_path / "canary")
    values = [None, True, -1, 0, 3, 10**6, 1e308, math.nan, "", "x", "../..", [], {}, [[]], {"x": {}}, "\x00", "\ud800"]
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*.json"))]
    for number in trials(120):
        model = tmp_path / "model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(folder, model)
        path = model / rng.choice(files)
        content = json.loads(path.read_text())
        place = content
        while isinstance(place, dict | list) and place:
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.4:
                break
            place = place[key]
        value = rng.choice(values)
        place[key] = value
        path.write_text(json.dumps(content))
        judge(f"{number}: {path.name} {key}={value!r}", explain(model, tmp_path), good, canary, tally)
    tally.check()


def received(folder: Path, place: Path) -> Path:
    """An index, as somebody might send one."""
    (place / "documents.txt").write_text("bad coffee\ngood bread\n")
    options = ["--model", folder, "--layer", "-1", "--store", "tokens"]
    ended = Command("index", "build", place / "documents.txt", place / "index", *options, folder=place).wait()
    assert ended.code == 0, ended
    return place / "index"


def compress(index: Path) -> None:
    shard = index / "00000.arrow"
    table = pa.ipc.open_file(pa.BufferReader(shard.read_bytes())).read_all()
    with pa.ipc.new_file(str(shard), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    claim(index, bytes=shard.stat().st_size)


def claim(index: Path, **changes: Any) -> None:
    """Let the manifest say something else of its first shard."""
    content = json.loads((index / "manifest.json").read_text())
    content["shards"][0] |= changes
    (index / "manifest.json").write_text(json.dumps(content))


def say(index: Path, **changes: Any) -> None:
    edit(index / "manifest.json", **changes)


INDEXES: dict[str, Callable[[Path, Path], Any]] = {
    "compressed shards": lambda i, _: compress(i),
    "a shard of 10^15 texts": lambda i, _: claim(i, texts=10**15),
    "a shard of a text's number": lambda i, _: claim(i, texts="2"),
    "a shard outside": lambda i, _: claim(i, file="../../../../etc/passwd"),
    "an absolute shard": lambda i, _: claim(i, file="/etc/passwd"),
    "a shard that is a link": lambda i, v: (shutil.move(i / "00000.arrow", v), link(i / "00000.arrow", str(v))),
    "10^9 dimensions": lambda i, _: say(i, dimensions=10**9),
    "dimensions of a text": lambda i, _: say(i, dimensions="16"),
    "a precision that is none": lambda i, _: say(i, precision="float1"),
    "a version of the future": lambda i, _: say(i, version=99),
    "a version that is true": lambda i, _: say(i, version=True),
    "settings of nothing": lambda i, _: say(i, settings={}),
    "settings that are a list": lambda i, _: say(i, settings=[1]),
    "a layer that is not": lambda i, _: say(
        i, settings=json.loads((i / "manifest.json").read_text())["settings"] | {"layer": 99}
    ),
    "a deeply nested manifest": lambda i, _: replace(i / "manifest.json", '{"x":' * 100_000),
    "a manifest that is a list": lambda i, _: replace(i / "manifest.json", "[]"),
    "a manifest that is a link": lambda i, v: (shutil.move(i / "manifest.json", v), link(i / "manifest.json", str(v))),
    "an empty shard": lambda i, _: (replace(i / "00000.arrow", b""), claim(i, bytes=0)),
    "a shard of bytes": lambda i, _: (replace(i / "00000.arrow", b"ARROW1" * 100), claim(i, bytes=600)),
}  # fmt: skip


def test_indexes_by_hand(folder, tmp_path, tally):
    """A search of a spoilt index is refused; what is refused is refused within memory and time."""
    whole = received(folder, tmp_path)
    arguments = ("index", "search", "bad coffee", tmp_path / "copy", "--model", folder, "--json", tmp_path / "hits")
    for name, spoil in INDEXES.items():
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        (tmp_path / "victim").unlink(missing_ok=True)
        shutil.copytree(whole, tmp_path / "copy")
        spoil(tmp_path / "copy", tmp_path / "victim")
        ended = Command(*arguments, folder=tmp_path, memory=2**30).wait(SECONDS)
        tally.add("refused") if ended.refused else tally.fail(f"{name}: {ended}")
    tally.check()


def test_nothing_is_written_through_a_link(folder, tmp_path, tally):
    """An index that was received may hold links where the next files will be written."""
    whole = received(folder, tmp_path)
    victim = tmp_path / "victim"
    names = ("00001.arrow", "manifest.json", ".lock", "00000.arrow", "00002.arrow")
    for name in names:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "copy")
        path = tmp_path / "copy" / name
        content = path.read_bytes() if path.exists() else b"mine"
        victim.write_bytes(content)
        link(path, str(victim))
        arguments = ("index", "add", tmp_path / "documents.txt", tmp_path / "copy", "--model", folder)
        ended = Command(*arguments, folder=tmp_path).wait(SECONDS)
        if victim.read_bytes() != content:
            tally.fail(f"{name}: what the link points to was overwritten")
        elif ended.code == 0 or ended.refused:
            tally.add("what the link points to is as it was")
        else:
            tally.fail(f"{name}: {ended}")
    tally.check()


def test_hostile_explanations(folder, tmp_path, tally):
    """``Explanation.load`` gives an explanation that can be shown, or refuses."""
    rng = seeded("explanations")
    good = Explainer(folder, layer=2).explain(*PAIR).to_dict()
    path = tmp_path / "why.json"
    values = [None, True, -1, 10**400, math.nan, math.inf, "", "evil", [], {}, [[]], "\x00", [None], [[1]], 1.5]

    def places(value: Any, trail: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
        return [trail] * bool(trail) + [place for key, item in inner for place in places(item, (*trail, key))]

    every = places(good)
    for number in trials(600):
        content = json.loads(json.dumps(good))
        trail = every[number % len(every)]
        holder = content
        for key in trail[:-1]:
            holder = holder[key]
        value = rng.choice(values)
        holder[trail[-1]] = value
        name = f"{'.'.join(map(str, trail))}={str(value)[:20]}"
        path.write_text(json.dumps(content))
        try:
            why = Explanation.load(path)
        except ValueError as error:
            tally.add("refused") if is_clear(str(error)) else tally.fail(f"{name}: {describe(error)}")
            continue
        except Exception as error:
            tally.fail(f"{name}: {describe(error)}")
            continue
        try:
            why.words(), why.top(), why.align(), why.to_html(), repr(why)
            again = Explanation.from_dict(json.loads(json.dumps(why.to_dict(), allow_nan=False)))
        except Exception as error:
            tally.fail(f"{name}: loaded, and then {describe(error)}")
            continue
        tally.add("loaded and shown") if again.to_dict() == why.to_dict() else tally.fail(f"{name}: changes again")
    path.write_text("[" * 200_000)
    try:
        Explanation.load(path)
        tally.fail("a deeply nested file was loaded")
    except ValueError:
        tally.add("refused")
    except RecursionError as error:
        tally.fail(f"a deeply nested file: {describe(error)}")
    tally.check()
