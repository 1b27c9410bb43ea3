"""Training: it learns, it resumes after a kill, it writes a model that anyone can load, it refuses what it should."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import zoo

pytest.importorskip("datasets", reason="training needs the extra train: pip install 'whymatch[train]'")
pytest.importorskip("accelerate", reason="training needs the extra train: pip install 'whymatch[train]'")

from whymatch import Explainer, models
from whymatch.tables import Pairs
from whymatch.training import Recipe, adjust, evaluate_sts, train
from whymatch.training.data import Splits, read_splits

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

WORDS = ["coffee", "bread", "man", "woman", "dog", "child", "kitchen", "field", "stocks", "bad", "good", "snowy"]


def pairs(count: int, seed: int = 0) -> Pairs:
    """Texts of three words; the score is the share of words that they have in common."""
    rng = np.random.default_rng(seed)
    texts, scores = [], []
    for _ in range(count):
        a = rng.choice(WORDS, 3, replace=False)
        b = a.copy()
        new = int(rng.integers(0, 4))
        b[:new] = rng.choice([word for word in WORDS if word not in a], new, replace=False)
        texts.append((" ".join(a), " ".join(rng.permutation(b))))
        scores.append(1 - new / 3)
    return Pairs("made up", ("a", "b", "score"), texts, scores)


@pytest.fixture(scope="module")
def splits():
    """Judged by what it is trained on: so small a model learns, and does not understand."""
    return Splits(pairs(96), pairs(96), pairs(40, 2))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = zoo.build(tmp_path_factory.mktemp("base"), normalize=True)
    config = json.loads((folder / "config.json").read_text())
    # Dropout drowns what so wildly weighted a model could learn.
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def write_csv(path, some: Pairs):
    path.write_text("".join(f"{a},{b},{score * 5}\n" for (a, b), score in zip(some.texts, some.scores, strict=True)))
    return path


@pytest.mark.parametrize("objective", ["dot", "cosine"])
@pytest.mark.parametrize("adjusted", [True, False])
def test_training_learns_and_the_folder_is_a_model(base, splits, tmp_path, objective, adjusted):
    model = models.load(base, "cpu")[0]
    before = evaluate_sts(adjust(model) if adjusted else model, splits.dev)
    said = []
    recipe = Recipe(base=base, objective=objective, adjusted=adjusted, epochs=4, lr=2e-3, batch_size=8)
    record = train(recipe, splits, tmp_path / "out", say=said.append, device="cpu")
    assert [line.split(":")[0] for line in said] == ["epoch 1", "epoch 2", "epoch 3", "epoch 4"]
    assert len(record["epochs"]) == 4
    assert record["dev"][objective] > before[objective] + 5
    assert record["dev"][objective] == pytest.approx(max(epoch[objective] for epoch in record["epochs"]), abs=1e-6)
    model, _ = models.load(tmp_path / "out", "cpu")
    assert model.similarity_fn_name == objective
    assert evaluate_sts(model, splits.test) == pytest.approx(record["test"], abs=1e-6)
    assert not (tmp_path / "out/checkpoints").exists()
    assert not (tmp_path / "out/.whole").exists()
    card = (tmp_path / "out/README.md").read_text()
    for part in (base, f"{record['test']['dot']:.2f}", "96 pairs from made up", "Explainer(", "weight_decay | 0.1"):
        assert part in card
    why = Explainer(tmp_path / "out", fold_reference=False, tolerance=1e-4).explain("bad coffee", "good bread")
    if adjusted:
        assert abs(why.constant) < 1e-6 * max(1, abs(why.score))
    assert why.relative_error < 1e-4


@pytest.mark.parametrize(
    "changes", [{"scale": "one"}, {"scale": "learned"}, {"own": 1.0}, {"teacher": "base"}, {"warmup": 0.0}]
)
def test_variants_of_the_dot_objective(base, splits, tmp_path, changes):
    if "teacher" in changes:
        changes = {"teacher": base}
    record = train(Recipe(base=base, epochs=1, lr=3e-3, **changes), splits, tmp_path / "out", device="cpu")
    assert record["steps"] == 6
    assert np.isfinite(record["test"]["dot"])


def test_a_seed_decides(base, splits, tmp_path):
    recipe = Recipe(base=base, epochs=1, lr=1e-3)
    scores = [train(recipe, splits, tmp_path / name, device="cpu")["test"] for name in "ab"]
    assert scores[0] == scores[1]
    assert (
        train(Recipe(base=base, epochs=1, lr=1e-3, seed=1), splits, tmp_path / "c", device="cpu")["test"] != scores[0]
    )


COMMAND = """
import sys
import torch; torch.set_num_threads(1)
from whymatch.cli import main
sys.argv = ["whymatch", *sys.argv[1:]]
main()
"""


def test_killed_and_resumed_it_ends_as_if_it_had_not_been(base, splits, tmp_path):
    for name, some in vars(splits).items():
        write_csv(tmp_path / f"pairs-{name}.csv", some)
    files = ["--data", str(tmp_path / "pairs-train.csv"), "--base", base, "--epochs", "4", "--lr", "1e-3"]
    command = [sys.executable, "-c", COMMAND, "train", *files, "--scale", "learned"]
    environment = os.environ | {"TQDM_DISABLE": "1"}
    whole = subprocess.run([*command, "--out", tmp_path / "whole"], capture_output=True, text=True, env=environment)
    assert whole.returncode == 0, whole.stderr
    assert "train: 96 pairs from pairs-train.csv (columns 1, 2, 3)" in whole.stdout
    assert "dev: 96 pairs from pairs-dev.csv" in whole.stdout
    assert "test: Spearman" in whole.stdout
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [*command, "--out", out], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if list(out.glob("checkpoints/checkpoint-*/scale.json")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    assert process.wait() == -signal.SIGKILL
    assert not (out / "modules.json").exists()  # nothing that looks like a model
    again = subprocess.run([*command, "--out", out], capture_output=True, text=True, env=environment)
    assert again.returncode == 2
    assert "holds a run that can be resumed with --resume" in again.stderr
    # A checkpoint that was cut short is not resumed from.
    (out / "checkpoints/checkpoint-999").mkdir()
    (out / "checkpoints/checkpoint-999/trainer_state.json").write_text("{")
    again = subprocess.run([*command, "--out", out, "--resume"], capture_output=True, text=True, env=environment)
    assert again.returncode == 0, again.stderr
    assert "resuming from checkpoint-" in again.stdout
    records = [json.loads((folder / "training.json").read_text()) for folder in (tmp_path / "whole", out)]
    assert [one["epoch"] for one in records[1]["epochs"]] == [1, 2, 3, 4]
    assert records[1]["test"] == pytest.approx(records[0]["test"], abs=1e-3)
    third = subprocess.run([*command, "--out", out, "--resume"], capture_output=True, text=True, env=environment)
    assert "is finished already" in third.stdout


def test_folders_that_are_refused(base, splits, tmp_path):
    recipe = Recipe(base=base, epochs=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it is a file; name a folder"):
        train(recipe, splits, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="is not empty, and no training was begun in it"):
        train(recipe, splits, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    train(recipe, splits, tmp_path / "out", device="cpu")
    with pytest.raises(FileExistsError, match="holds a trained model"):
        train(recipe, splits, tmp_path / "out")
    with pytest.raises(ValueError, match=r"begun with other settings \(epochs was 1, is 2\)"):
        train(Recipe(base=base, epochs=2), splits, tmp_path / "out", resume=True)
    with pytest.raises(ValueError, match=r"other settings \(the pairs are others\)"):
        train(recipe, Splits(pairs(20), splits.dev, None), tmp_path / "out", resume=True)
    (tmp_path / "out/training.json").write_text("{")
    with pytest.raises(ValueError, match="is not a record of training"):
        train(recipe, splits, tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("objective", "l2"), ("epochs", 0), ("batch_size", 0), ("lr", 0.0), ("lr", 2.0), ("weight_decay", -1.0),
     ("warmup", 1.0), ("scale", "two"), ("own", -1.0)],
)  # fmt: skip
def test_impossible_settings(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} is not possible; give"):
        Recipe(**{name: value})


def test_parts_beside_a_file_are_found_and_else_held_out(tmp_path):
    write_csv(tmp_path / "x-train.csv", pairs(50))
    found = read_splits(str(tmp_path / "x-train.csv"))
    assert (len(found.train), len(found.dev), found.test) == (45, 5, None)
    assert "held out" in str(found)
    assert not set(found.train.texts) & (set(found.dev.texts) - set(found.train.texts))
    write_csv(tmp_path / "x-validation.csv", pairs(7, 1))
    write_csv(tmp_path / "other.csv", pairs(9, 2))
    found = read_splits(str(tmp_path / "x-train.csv"), test=str(tmp_path / "other.csv"))
    assert (len(found.train), len(found.dev), len(found.test)) == (50, 7, 9)
    with pytest.raises(ValueError, match="too few to train on"):
        read_splits(str(write_csv(tmp_path / "few.csv", pairs(3))))


def test_a_folder_of_the_datasets_library(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    for name, count in (("train", 30), ("validation", 8)):
        some = pairs(count, count)
        rows = [
            {"sentence1": a, "sentence2": b, "score": score}
            for (a, b), score in zip(some.texts, some.scores, strict=True)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_splits(str(folder))
    assert (len(found.train), len(found.dev), found.test) == (30, 8, None)
    with pytest.raises(ValueError, match=r"cannot read 'acme/nothing': it is no file, and no dataset of that name"):
        read_splits("acme/nothing")
    with pytest.raises(ValueError, match="brings its own parts"):
        read_splits(str(folder), dev="dev.csv")


def test_evaluation_on_the_command_line(whymatch, base, tmp_path):
    file = write_csv(tmp_path / "pairs.csv", pairs(30))
    out, _ = whymatch("evaluate-sts", base, "--data", str(file), "--json", str(tmp_path / "x.json"), model=False)
    assert "30 pairs from pairs.csv (columns 1, 2, 3)" in out
    found = json.loads((tmp_path / "x.json").read_text())["spearman"]
    assert f"{found['cosine']:.2f} by cosine, {found['dot']:.2f} by dot product" in out
    _, err = whymatch("evaluate-sts", base, "--data", "none.csv", code=2, model=False)
    assert "there is no file 'none.csv'" in err


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "qwen3"])
@pytest.mark.parametrize("adjusted", [True, False])
def test_texts_that_run_together_are_embedded_as_they_are_alone(load, kind, adjusted):
    import torch

    from whymatch.training.loss import embed

    model = (adjust(load(kind, torch.float64)) if adjusted else load(kind, torch.float64)).eval()
    some = pairs(15)
    texts = [[f"{a} {a}" if i % 3 else a for i, (a, _) in enumerate(some.texts)], [b for _, b in some.texts]]
    found = embed(model, [model.preprocess(column) for column in texts])
    for one, column in zip(found, texts, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), model.encode(column), atol=1e-6)
