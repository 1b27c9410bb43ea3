"""Training: it learns, it resumes after a kill, it writes a model that anyone can load, it refuses what it should."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import zoo
from sentence_transformers import SentenceTransformer

pytest.importorskip("datasets", reason="training needs the extra train: pip install 'whymatch[train]'")
pytest.importorskip("accelerate", reason="training needs the extra train: pip install 'whymatch[train]'")

from whymatch import Explainer, training
from whymatch.corpus.pairs import Pairs
from whymatch.encoders import loading
from whymatch.training import Recipe, adjust, evaluate_sts, run, train
from whymatch.training.data import Splits, read_splits
from whymatch.training.loss import PairLoss, embed

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


@pytest.mark.parametrize(
    ("objective", "adjusted", "normalized"), [("dot", True, False), ("cosine", True, True), ("cosine", False, False)]
)
def test_training_learns_and_the_folder_is_a_model(base, splits, tmp_path, objective, adjusted, normalized):
    model = loading.load(base, "cpu")[0]
    before = evaluate_sts(adjust(model, normalized=normalized) if adjusted else model, splits.dev)
    lines = []
    kind = {"objective": objective, "adjusted": adjusted, "normalized": normalized}
    recipe = Recipe(base=base, **kind, epochs=4, lr=2e-3, batch_size=8)
    record = train(recipe, splits, tmp_path / "out", say=lines.append, device="cpu")
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2", "epoch 3", "epoch 4", "written"]
    assert len(record["epochs"]) == 4
    assert record["dev"][objective] > before[objective] + 1  # four epochs of 96 pairs; how much, rounding decides
    assert record["dev"][objective] == pytest.approx(max(epoch[objective] for epoch in record["epochs"]), abs=1e-6)
    model, _ = loading.load(tmp_path / "out", "cpu")
    assert model.similarity_fn_name == objective
    assert evaluate_sts(model, splits.test) == pytest.approx(record["test"], abs=1e-6)
    assert not (tmp_path / "out/checkpoints").exists()
    assert not (tmp_path / "out/.whole").exists()
    card = (tmp_path / "out/README.md").read_text()
    test = f"| test | {record['test']['cosine']:.2f} | {record['test']['dot']:.2f} |"
    kept = f"dev, epoch {record['best_epoch']:g}, which was kept"
    for part in (test, kept, "96 pairs from made up", 'Explainer("out")', "weight decay | 0.1", "base | "):
        assert part in card
    assert base not in card  # where it lies is nobody's business
    assert ("Scores are dot products" in card) == (objective == "dot")
    assert ("trust_remote_code=True" in card) == adjusted
    assert ("Both have length 1" in card) == normalized
    why = Explainer(tmp_path / "out", fold_reference=False, tolerance=1e-4).explain("bad coffee", "good bread")
    if adjusted:
        assert abs(why.constant) < 1e-6 * max(1, abs(why.score))
    assert why.relative_error < 1e-4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_matrix_products_of_training_have_fewer_digits(base, splits, tmp_path, monkeypatch, precision):
    enabled = []

    def watched(*given):
        enabled.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16)
        return embed(*given)

    monkeypatch.setattr("whymatch.training.loss.embed", watched)
    recipe = Recipe(base=base, epochs=1, lr=2e-3, batch_size=8, precision=precision)
    record = train(recipe, splits, tmp_path / "out", device="cpu")
    assert set(enabled) == {precision == "bfloat16"}
    model, _ = loading.load(tmp_path / "out", "cpu")
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert evaluate_sts(model, splits.test) == pytest.approx(record["test"], abs=1e-6)
    assert f"precision | {precision}" in (tmp_path / "out/README.md").read_text()


class Known(torch.nn.Module):
    """A model whose embeddings are what it is given."""

    device = torch.device("cpu")

    def forward(self, features):
        return {"sentence_embedding": features["x"]}


@pytest.mark.parametrize(
    ("objective", "scale", "zero", "own", "expected"),
    [
        ("cosine", 1.0, 0.0, 0.0, (0.8**2 + 0.5**2) / 2),  # cosines 0.8 and 1 against 0 and 0.5
        ("dot", 1.0, 0.0, 0.0, (8.0**2 + 5.5**2) / 2),  # products 8 and 6
        ("dot", 0.5, 0.0, 0.0, (4.0**2 + 2.5**2) / 2),
        ("dot", 0.5, 4.0, 0.0, (2.0**2 + 0.5**2) / 2),
        ("dot", 0.5, 0.0, 2.0, (4.0**2 + 2.5**2) / 2 + 2 * (11.5**2 + 0.0**2 + 1.0**2 + 8.0**2) / 4),  # 25, 2, 4, 18
        ("dot", 0.5, 2.0, 1.0, (3.0**2 + 1.5**2) / 2 + (10.5**2 + 1.0**2 + 0.0**2 + 7.0**2) / 4),
    ],
)
def test_the_objectives_by_hand(objective, scale, zero, own, expected):
    a, b = torch.tensor([[3.0, 4.0], [1.0, 1.0]]), torch.tensor([[0.0, 2.0], [3.0, 3.0]])
    loss = PairLoss(Known(), objective, scale, zero, own=own)
    result = loss([{"x": a}, {"x": b}], torch.tensor([0.0, 0.5]))
    assert result.item() == pytest.approx(expected, rel=1e-6)


def test_a_learned_scale_is_learned_and_not_decayed(base, splits, tmp_path, monkeypatch):
    groups = {}
    original = run._Trainer.create_optimizer

    def create(self, *args, **kwargs):
        optimizer = original(self, *args, **kwargs)
        for group in optimizer.param_groups:
            for weight in group["params"]:
                groups[weight] = (group["lr"], group["weight_decay"])
        scale = self.loss.log_scale
        assert groups[scale] == (1e-2, 0.0)
        assert {decay for weight, (_, decay) in groups.items() if weight.ndim == 2} == {0.25}
        return optimizer

    monkeypatch.setattr(run._Trainer, "create_optimizer", create)
    recipe = Recipe(base=base, epochs=1, lr=1e-3, weight_decay=0.25)
    learned = train(dataclasses.replace(recipe, scale="learned"), splits, tmp_path / "a", device="cpu")["scale"]
    monkeypatch.undo()
    usual = train(recipe, splits, tmp_path / "b", device="cpu")["scale"]
    assert learned != usual
    assert train(dataclasses.replace(recipe, scale="one"), splits, tmp_path / "c", device="cpu")["scale"] == 1.0
    texts = [a for a, _ in splits.train.texts]
    vectors = adjust(loading.load(base, "cpu")[0]).encode(texts)
    assert usual == pytest.approx(1 / np.square(vectors).sum(1).mean(), rel=1e-4)


def test_what_unrelated_texts_have_in_common_counts_as_nothing(base, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SAMPLE", 16)
    record = train(Recipe(base=base, epochs=1, centred=True), splits, tmp_path / "out", device="cpu")
    firsts, seconds = (
        adjust(loading.load(base, "cpu")[0]).encode(list(side)) for side in zip(*splits.train.texts, strict=True)
    )
    firsts, seconds = firsts[:16], seconds[48:64]  # of 96: half a file away
    others = (firsts @ seconds.T).mean()
    assert record["zero"] == pytest.approx(others, rel=1e-4)
    assert record["scale"] == pytest.approx(1 / (np.square(firsts).sum(1).mean() - others), rel=1e-4)
    offset = record["zero"] * record["scale"]
    assert f"people's scores (0 to 1) plus {offset:.3g}" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize("adjusted", [True, False])
def test_scores_are_in_the_unit_of_peoples(base, splits, tmp_path, adjusted):
    """And a model that is trained twice is scaled once."""
    model = loading.load(base, "cpu")[0]
    SentenceTransformer(modules=[model[0], model[1]]).save(str(tmp_path / "long"))  # without its Normalize
    recipe = Recipe(base=str(tmp_path / "long"), epochs=1, lr=1e-9, adjusted=adjusted)
    record = train(recipe, splits, tmp_path / "out", device="cpu")
    assert abs(record["scale"] - 1) > 0.01
    texts = [a for a, _ in splits.train.texts]
    own = np.square(loading.load(tmp_path / "out", "cpu")[0].encode(texts)).sum(1).mean()
    assert own == pytest.approx(1.0 if adjusted else 1 / record["scale"], rel=1e-3)
    again = train(dataclasses.replace(recipe, base=str(tmp_path / "out")), splits, tmp_path / "two", device="cpu")
    model = loading.load(tmp_path / "two", "cpu")[0]
    assert np.square(model.encode(texts)).sum(1).mean() == pytest.approx(own, rel=1e-3)
    assert sum(isinstance(module, training.Scale) for module in model.modules()) == adjusted
    assert again["scale"] == pytest.approx(1.0 if adjusted else record["scale"], rel=1e-3)


def test_a_teacher_counts_as_much_as_people(base, splits):
    model, _ = loading.load(base, "cpu")
    result = run._teacher_labels(base, splits, "cpu")
    for (a, b), score, taught in zip(splits.train.texts, splits.train.scores, result, strict=True):
        cosine = model.similarity(*model.encode([a, b])).item()
        assert taught == pytest.approx((score + cosine) / 2, abs=1e-5)


def test_the_learning_rate_rises_and_falls(base, splits, tmp_path, monkeypatch):
    rates = []
    original = run._Reporter.on_step_end

    def note(self, args, state, control, **kwargs):
        rates.append(kwargs["lr_scheduler"].get_last_lr()[0])
        original(self, args, state, control, **kwargs)

    monkeypatch.setattr(run._Reporter, "on_step_end", note)
    train(Recipe(base=base, epochs=2, lr=1e-3, warmup=0.5), splits, tmp_path / "out", device="cpu")
    assert len(rates) == 12
    assert rates[5] == max(rates) == pytest.approx(1e-3)
    assert rates == sorted(rates[:6]) + sorted(rates[6:], reverse=True)


def total(model) -> float:
    return sum(weight.detach().double().sum().item() for weight in model.parameters())


def test_the_best_epoch_is_kept_and_not_the_last(base, splits, tmp_path, monkeypatch):
    """Judged by a split on which the second epoch is made to be the best."""
    seen = []
    original = run.evaluate_sts

    def judged(model, pairs):
        result = original(model, pairs)
        if pairs is splits.dev:
            weights = total(model)
            seen.append(weights)
            result = {
                "cosine": 50.0,
                "dot": 90.0 if abs(weights - seen[min(1, len(seen) - 1)]) < 1e-9 and len(seen) > 1 else 60.0,
            }
        return result

    monkeypatch.setattr(run, "evaluate_sts", judged)
    record = train(Recipe(base=base, epochs=3, lr=1e-3), splits, tmp_path / "out", device="cpu")
    assert [epoch["dot"] for epoch in record["epochs"]] == [60.0, 90.0, 60.0]
    assert record["best_epoch"] == 2
    assert seen[3] == seen[1] != seen[2]
    model, _ = loading.load(tmp_path / "out", "cpu")
    assert total(model) == pytest.approx(seen[1], abs=1e-6)


def test_a_best_epoch_that_cannot_be_read_back_is_an_error(base, splits, tmp_path, monkeypatch):
    monkeypatch.setattr(run._Trainer, "_load_best_model", lambda _: None)
    scores = iter([90.0, 60.0, 60.0])
    monkeypatch.setattr(run, "evaluate_sts", lambda *_: dict.fromkeys(("cosine", "dot"), next(scores)))
    with pytest.raises(OSError, match="the weights of epoch 1, the best, could not be read back"):
        train(
            Recipe(base=base, epochs=2, lr=1e-3), dataclasses.replace(splits, test=None), tmp_path / "out", device="cpu"
        )
    assert not (tmp_path / "out/modules.json").exists()


class Fixed:
    """A model that knows the embeddings of a few texts."""

    model_card_data = Mock()

    def __init__(self, **vectors):
        self.vectors = vectors

    def encode(self, texts, **_):
        return np.array([self.vectors[text] for text in texts], dtype=np.float32)


def test_correlations_by_hand():
    model = Fixed(a=[1.0, 0.0], b=[2.0, 0.0], c=[0.0, 3.0], d=[1.0, 1.0])
    texts = [("a", "b"), ("a", "c"), ("c", "d"), ("b", "d")]  # cosine 1, 0, .71, .71; dot 2, 0, 3, 2
    pairs = Pairs("p", ("a", "b", "s"), texts, [1.0, 0.0, 0.6, 0.5])
    result = evaluate_sts(model, pairs)
    assert result["cosine"] == pytest.approx(100 * (1 - 0.05), abs=0.2)  # one tie of four
    assert result["dot"] == pytest.approx(100 * 0.6325, abs=0.1)
    with pytest.raises(ArithmeticError, match="people's scores of the 4 pairs from p are all the same"):
        evaluate_sts(model, Pairs("p", ("a", "b", "s"), texts, [1.0] * 4))
    for vectors in ([1.0, 0.0], [np.nan, 0.0]):
        with pytest.raises(ArithmeticError, match="this model's scores by cosine of the 4 pairs from p are all the"):
            evaluate_sts(Fixed(a=vectors, b=vectors, c=vectors, d=vectors), pairs)


def test_what_is_wrong_leaves_nothing_behind(base, splits, tmp_path):
    for changes in ({"base": "acme/nothing"}, {"teacher": "acme/nothing"}):
        with pytest.raises((OSError, ValueError), match="acme/nothing"):
            train(Recipe(**({"base": base} | changes)), splits, tmp_path / "out", device="cpu")
        assert not (tmp_path / "out").exists()
    same = Pairs("p", ("a", "b", "s"), splits.dev.texts, [0.5] * len(splits.dev))
    with pytest.raises(ValueError, match="all dev pairs from p have one score"):
        train(Recipe(base=base), dataclasses.replace(splits, dev=same), tmp_path / "out", device="cpu")
    adjust(loading.load(base, "cpu")[0]).save(str(tmp_path / "adjusted"))
    with pytest.raises(ValueError, match="is an adjusted model; a plain one"):
        train(Recipe(base=str(tmp_path / "adjusted"), adjusted=False), splits, tmp_path / "out", device="cpu")
    with pytest.raises(ValueError, match="does not normalize; drop normalized=True"):
        train(Recipe(base=str(tmp_path / "adjusted"), normalized=True), splits, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_texts_are_trained_with_the_prompt_that_they_are_read_with(base, splits, tmp_path, monkeypatch):
    model, _ = loading.load(base, "cpu")
    model.prompts, model.default_prompt_name = {"p": "the coffee: "}, "p"
    model.save(str(tmp_path / "prompted"))
    seen = []
    original = PairLoss.forward

    def forward(self, features, labels):
        features = list(features)
        seen.extend(self.model.tokenizer.batch_decode(features[0]["input_ids"]))
        return original(self, features, labels)

    monkeypatch.setattr(PairLoss, "forward", forward)
    train(Recipe(base=str(tmp_path / "prompted"), epochs=1), splits, tmp_path / "out", device="cpu")
    assert seen
    assert all("the coffee" in text.lower() for text in seen)


def test_progress_is_shown(whymatch, base, splits, tmp_path):
    for name, some in vars(splits).items():
        write_csv(tmp_path / f"pairs-{name}.csv", some)
    files = ["--data", str(tmp_path / "pairs-train.csv"), "--base", base, "--epochs", "1", "--out", str(tmp_path / "o")]
    out, err = whymatch("train", *files, model=False)
    assert "6/6" in err
    assert "eval_" not in out + err
    assert out.splitlines()[-2:] == [
        f"written: {tmp_path / 'o'}",
        next(line for line in out.splitlines() if "test: S" in line),
    ]


def test_a_seed_decides(base, splits, tmp_path):
    recipe = Recipe(base=base, epochs=1, lr=1e-3)
    scores = [train(recipe, splits, tmp_path / name, device="cpu")["test"] for name in "ab"]
    assert scores[0] == scores[1]
    assert (
        train(Recipe(base=base, epochs=1, lr=1e-3, seed=1), splits, tmp_path / "c", device="cpu")["test"] != scores[0]
    )


def test_killed_and_resumed_it_ends_as_if_it_had_not_been(base, splits, tmp_path, whymatch, monkeypatch):
    for name, some in vars(splits).items():
        write_csv(tmp_path / f"pairs-{name}.csv", some)
    files = ["--data", str(tmp_path / "pairs-train.csv"), "--base", base, "--epochs", "4", "--lr", "1e-3"]
    command = ["train", *files, "--scale", "learned"]
    monkeypatch.setenv("TQDM_DISABLE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    said, _ = whymatch(*command, "--out", str(tmp_path / "whole"), model=False)
    assert "train: 96 pairs from pairs-train.csv (columns 1, 2, 3; scores 0 to 5)" in said
    assert "dev: 96 pairs from pairs-dev.csv" in said
    assert "test: Spearman" in said
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "whymatch", *command, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if list(out.glob("checkpoints/checkpoint-*/scale.json")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    assert process.wait() == -signal.SIGKILL
    assert not (out / "modules.json").exists()  # nothing that looks like a model
    _, refused = whymatch(*command, "--out", str(out), code=2, model=False)
    assert "holds a run that can be resumed with --resume" in refused
    # A checkpoint that was cut short is not resumed from.
    (out / "checkpoints/checkpoint-999").mkdir()
    (out / "checkpoints/checkpoint-999/trainer_state.json").write_text("{")
    said, _ = whymatch(*command, "--out", str(out), "--resume", model=False)
    assert "resuming from checkpoint-" in said
    records = [json.loads((folder / "training.json").read_text()) for folder in (tmp_path / "whole", out)]
    assert [epoch["epoch"] for epoch in records[1]["epochs"]] == [1, 2, 3, 4]
    assert records[1]["test"] == pytest.approx(records[0]["test"], abs=1e-3)
    assert records[1]["scale"] == pytest.approx(records[0]["scale"], rel=1e-6)
    assert records[0]["scale"] != 1.0
    said, _ = whymatch(*command, "--out", str(out), "--resume", model=False)
    assert "is finished already" in said


def test_folders_that_are_refused(base, splits, tmp_path):
    recipe = Recipe(base=base, epochs=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it is a file; name a folder"):
        train(recipe, splits, tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="is not empty, and has no training to resume"):
        train(recipe, splits, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    train(recipe, splits, tmp_path / "out", device="cpu")
    with pytest.raises(FileExistsError, match="holds a trained model"):
        train(recipe, splits, tmp_path / "out")
    with pytest.raises(ValueError, match=r"begun with other settings \(epochs was 1, is 2\)"):
        train(Recipe(base=base, epochs=2), splits, tmp_path / "out", resume=True)
    with pytest.raises(ValueError, match=r"other settings \(the pairs differ\)"):
        train(recipe, Splits(pairs(20), splits.dev, None), tmp_path / "out", resume=True)
    record = json.loads((tmp_path / "out/training.json").read_text())
    # The second was changed after it was written.
    for content in ("{", json.dumps(record | {"seconds": 1})):
        (tmp_path / "out/training.json").write_text(content)
        with pytest.raises(ValueError, match="is not a record of training"):
            train(recipe, splits, tmp_path / "out", resume=True)
    del record["finished"], record["checksum"]
    (tmp_path / "out/training.json").write_text(json.dumps(record | {"base_identity": "of another"}))
    with pytest.raises(ValueError, match="was begun with other weights of"):
        train(recipe, splits, tmp_path / "out", resume=True, device="cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [("objective", "l2"), ("epochs", 0), ("batch_size", 0), ("lr", 0.0), ("lr", 2.0), ("weight_decay", -1.0),
     ("warmup", 1.0), ("scale", "two"), ("own", -1.0), ("precision", "float16")],
)  # fmt: skip
def test_impossible_settings(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} is not possible; give"):
        Recipe(**{name: value})


def test_settings_that_would_do_nothing():
    with pytest.raises(ValueError, match="normalized=True is about the shift"):
        Recipe(adjusted=False, normalized=True)
    for name, value in (("scale", "one"), ("centred", True), ("own", 1.0)):
        with pytest.raises(ValueError, match=f"{name}={value!r} is about dot products"):
            Recipe(objective="cosine", **{name: value})


def test_the_scale_is_that_of_the_epoch_which_is_kept(base, splits, tmp_path, monkeypatch):
    scales = []
    original = run._Reporter.on_save

    def note(self, *args, **kwargs):
        scales.append(self._loss.log_scale.exp().item())
        original(self, *args, **kwargs)

    monkeypatch.setattr(run._Reporter, "on_save", note)
    best = iter([10.0, 30.0, 20.0])
    judged = run._DevEvaluator.__call__
    monkeypatch.setattr(
        run._DevEvaluator, "__call__", lambda *args, **kwargs: judged(*args, **kwargs) | {"dot": next(best)}
    )
    monkeypatch.setattr(run, "SAME", 1000.0)  # the second epoch only claims to be the best
    recipe = Recipe(base=base, epochs=3, lr=1e-3, scale="learned")
    record = train(recipe, splits, tmp_path / "out", device="cpu")
    assert len(set(scales)) == 3
    assert record["best_epoch"] == 2
    assert record["scale"] == pytest.approx(scales[1], rel=1e-6)
    assert record["factor"] == pytest.approx(scales[1] ** 0.5, rel=1e-6)


def test_a_record_from_before_a_setting_was_there(base, splits, tmp_path):
    recipe = Recipe(base=base, epochs=1)
    train(recipe, splits, tmp_path / "out", device="cpu")
    record = json.loads((tmp_path / "out/training.json").read_text())
    del record["checksum"], record["base_identity"]
    for name in ("normalized", "centred"):
        del record["recipe"][name]
    (tmp_path / "out/training.json").write_text(json.dumps(record))
    assert train(recipe, splits, tmp_path / "out", resume=True)["recipe"]["normalized"] is False
    with pytest.raises(ValueError, match="normalized was False, is True"):
        train(dataclasses.replace(recipe, normalized=True), splits, tmp_path / "out", resume=True)


def test_products_that_tell_nothing_apart(base, splits, tmp_path):
    pairs = dataclasses.replace(splits.train, texts=[("coffee", "coffee") for _ in splits.train.texts])
    with pytest.raises(ValueError, match="which does not tell them apart; drop centred=True"):
        train(Recipe(base=base, centred=True), dataclasses.replace(splits, train=pairs), tmp_path / "out", device="cpu")


def test_a_normalized_model_is_trained_again_and_its_card_says_so(base, splits, tmp_path):
    adjust(loading.load(base, "cpu")[0], normalized=True).save(str(tmp_path / "base"))
    for normalized in (True, False):
        out = tmp_path / str(normalized)
        train(Recipe(base=str(tmp_path / "base"), epochs=1, normalized=normalized), splits, out, device="cpu")
        assert "Both have length 1" in (out / "README.md").read_text()


def test_parts_beside_a_file_are_found_and_else_held_out(tmp_path):
    write_csv(tmp_path / "x-train.csv", pairs(50))
    result = read_splits(str(tmp_path / "x-train.csv"))
    assert (len(result.train), len(result.dev), result.test) == (45, 5, None)
    assert "held out" in str(result)
    assert sorted(result.train.texts + result.dev.texts) == sorted(pairs(50).texts)
    write_csv(tmp_path / "x-validation.csv", pairs(7, 1))
    write_csv(tmp_path / "other.csv", pairs(9, 2))
    result = read_splits(str(tmp_path / "x-train.csv"), test=str(tmp_path / "other.csv"))
    assert (len(result.train), len(result.dev), len(result.test)) == (50, 7, 9)
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
    result = read_splits(str(folder))
    assert (len(result.train), len(result.dev), result.test) == (30, 8, None)
    with pytest.raises(ValueError, match=r"cannot read 'acme/nothing': there is no such file, and no dataset"):
        read_splits("acme/nothing")
    with pytest.raises(ValueError, match="brings its own splits"):
        read_splits(str(folder), dev="dev.csv")


def test_evaluation_on_the_command_line(whymatch, base, tmp_path):
    file = write_csv(tmp_path / "pairs.csv", pairs(30))
    out, _ = whymatch("evaluate-sts", base, "--data", str(file), "--json", str(tmp_path / "x.json"), model=False)
    assert "30 pairs from pairs.csv (columns 1, 2, 3; scores 0 to 5)" in out
    result = json.loads((tmp_path / "x.json").read_text())["spearman"]
    assert f"{result['cosine']:.2f} by cosine, {result['dot']:.2f} by dot product" in out
    _, err = whymatch("evaluate-sts", base, "--data", "none.csv", code=2, model=False)
    assert "there is no file 'none.csv'" in err


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "qwen3"])
@pytest.mark.parametrize("adjusted", [True, False])
def test_texts_that_run_together_are_embedded_as_they_are_alone(load, kind, adjusted):
    model = (adjust(load(kind, torch.float64)) if adjusted else load(kind, torch.float64)).eval()
    some = pairs(15)
    texts = [[f"{a} {a}" if i % 3 else a for i, (a, _) in enumerate(some.texts)], [b for _, b in some.texts]]
    result = embed(model, [model.preprocess(column) for column in texts])
    for embeddings, column in zip(result, texts, strict=True):
        np.testing.assert_allclose(embeddings.detach().numpy(), model.encode(column), atol=1e-6)


def test_the_gradient_of_texts_and_references_that_run_together(load):
    model = adjust(load("bert", torch.float64)).eval()
    some = pairs(12)
    texts = [[f"{a} {a}" if i % 3 else a for i, (a, _) in enumerate(some.texts)], [b for _, b in some.texts]]
    result = embed(model, [model.preprocess(column) for column in texts])
    alone = [
        torch.stack([model(model.preprocess([text]))["sentence_embedding"][0] for text in column]) for column in texts
    ]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for value, expected in zip(result, alone, strict=True):
        torch.testing.assert_close(value, expected)
    gradients = [torch.autograd.grad((a * b).sum(), weights, allow_unused=True) for a, b in (result, alone)]
    for value, expected in zip(*gradients, strict=True):
        if value is not None:
            torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("adjusted", [False, True])
def test_tokens_are_looked_up_once_for_a_batch_that_runs_in_parts(base, adjusted, monkeypatch):
    model = SentenceTransformer(str(base), device="cpu")
    model = (adjust(model) if adjusted else model).eval()
    columns = [["coffee " * (i + 1) for i in range(20)], ["a good dog"] * 20]
    (table,) = [each for each in model.modules() if isinstance(each, torch.nn.Embedding) and len(each.weight) > 50]

    def gradients() -> tuple[int, list[torch.Tensor]]:
        backward = []
        model.zero_grad()
        a, b = embed(model, [model.preprocess(column) for column in columns])
        nodes, seen = [a.grad_fn, b.grad_fn], set()
        while nodes:  # count the lookups that have a gradient
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            backward += [node] if "EmbeddingBackward" in node.name() and _reaches(node, table.weight) else []
            nodes += [each for each, _ in node.next_functions]
        (a * b).sum().backward()
        return len(backward), [each.grad.clone() for each in model.parameters() if each.grad is not None]

    once, found = gradients()
    assert not table._forward_hooks  # nothing is left on the model
    monkeypatch.setattr("whymatch.training.loss._LookedUpOnce._instead", lambda *_: None)
    often, expected = gradients()
    assert (once, often > 1) == (1, True)
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)


def _reaches(node, parameter) -> bool:
    return any(getattr(each, "variable", None) is parameter for each, _ in node.next_functions)
