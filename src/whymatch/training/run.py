"""Training an encoder, adjusted or plain, on pairs with scores: the paper's settings, on the library's own trainer."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import TrainerCallback

from whymatch import __version__, models
from whymatch.files import written_aside
from whymatch.training.data import Splits
from whymatch.training.sts import evaluate_sts

RECORD = "training.json"
CHECKPOINTS = "checkpoints"
SCALE = "scale.json"
SAMPLE = 256  # texts that the scale is taken from


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults are the paper's."""

    base: str = models.DEFAULT_MODEL
    objective: Literal["dot", "cosine"] = "dot"
    adjusted: bool = True
    epochs: int = 5
    batch_size: int = 16
    lr: float = 2e-5
    weight_decay: float = 0.1
    warmup: float = 0.1  # of all steps
    seed: int = 0
    scale: Literal["one", "usual", "learned"] = "usual"  # of the dot product, in the loss
    own: float = 0.0  # the weight of a text's dot product with itself, which should be 1
    teacher: str | None = None  # a model whose cosines count as much as the labels

    def __post_init__(self) -> None:
        checks = {
            "objective": (self.objective in ("dot", "cosine"), "give dot or cosine"),
            "epochs": (self.epochs >= 1, "give 1 or more"),
            "batch_size": (self.batch_size >= 1, "give 1 or more"),
            "lr": (0 < self.lr < 1, "give a number between 0 and 1, such as 2e-5"),
            "weight_decay": (self.weight_decay >= 0, "give 0 or more"),
            "warmup": (0 <= self.warmup < 1, "give the share of all steps, from 0 to below 1"),
            "scale": (self.scale in ("one", "usual", "learned"), "give one, usual or learned"),
            "own": (self.own >= 0, "give 0 or more"),
        }
        for name, (right, advice) in checks.items():
            if not right:
                raise ValueError(f"{name}={getattr(self, name)!r} is not possible; {advice}")


def train(
    recipe: Recipe,
    splits: Splits,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda _: None,
    device: str | None = None,
) -> dict[str, Any]:
    """Train, keep the best epoch by the dev split, judge it by the test split; returns what ``training.json`` records.

    The folder holds a model only when training has ended. Until then it holds what is needed to resume.
    """
    out = Path(out)
    record = _begin(recipe, splits, out, resume)
    if record.get("finished"):
        say(f"{str(out)!r} is finished already: nothing to resume")
        return record
    _need_training()
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers import set_seed

    from whymatch.training.loss import PairLoss, usual_scale

    set_seed(recipe.seed)
    model, _ = models.load(recipe.base, device)
    if recipe.adjusted:
        from whymatch.training.shift import adjust, shift_of

        model = model if shift_of(model) is not None else adjust(model)
    model.similarity_fn_name = recipe.objective
    labels = splits.train.scores
    if recipe.teacher is not None:
        labels = _taught(recipe.teacher, splits, device)
    columns = {"sentence1": [a for a, _ in splits.train.texts], "sentence2": [b for _, b in splits.train.texts]}
    dot = recipe.objective == "dot"
    scale = usual_scale(model, columns["sentence1"][:SAMPLE]) if dot and recipe.scale != "one" else 1.0
    loss = PairLoss(model, recipe.objective, scale, learned=dot and recipe.scale == "learned", own=recipe.own)
    args = SentenceTransformerTrainingArguments(
        output_dir=str(out / CHECKPOINTS),
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.lr,
        learning_rate_mapping={"^log_scale$": 1e-2} if recipe.scale == "learned" and dot else {},
        weight_decay=recipe.weight_decay,
        warmup_steps=recipe.warmup,
        seed=recipe.seed,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=f"eval_{recipe.objective}",
        greater_is_better=True,
        logging_strategy="epoch",
        report_to="none",
        use_cpu=torch.device(model.device).type == "cpu",
        dataloader_pin_memory=torch.device(model.device).type == "cuda",
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_dict({**columns, "score": labels}),
        loss=loss,
        evaluator=_Judge(splits, recipe.objective),
        callbacks=[_Scribe(out, record, loss, say)],
    )
    last = _last_checkpoint(out / CHECKPOINTS)
    if last is not None:
        loss.log_scale.data.fill_(json.loads((last / SCALE).read_text(encoding="utf-8")))
        say(f"resuming from {last.name}")
    started = time.perf_counter()
    done = trainer.train(resume_from_checkpoint=None if last is None else str(last))
    record["seconds"] = record.get("seconds", 0.0) + time.perf_counter() - started
    record["steps"] = int(done.global_step)
    model.eval()
    record["dev"] = evaluate_sts(model, splits.dev)
    if splits.test is not None:
        record["test"] = evaluate_sts(model, splits.test)
    record["finished"] = True
    _finish(model, record, out)
    return record


class _Judge(BaseEvaluator):  # type: ignore[misc]
    """The dev split, as the trainer asks for it."""

    def __init__(self, splits: Splits, objective: str) -> None:
        super().__init__()
        self.splits = splits
        self.primary_metric = objective

    def __call__(self, model: Any, *_args: Any, **_kwargs: Any) -> dict[str, float]:
        return evaluate_sts(model, self.splits.dev)


class _Scribe(TrainerCallback):  # type: ignore[misc]
    """Says and records how each epoch ended, and keeps the loss's own weight with each checkpoint."""

    def __init__(self, out: Path, record: dict[str, Any], loss: Any, say: Callable[[str], None]) -> None:
        self.out, self.record, self.loss, self.say = out, record, loss, say

    def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: dict[str, float], **_kwargs: Any) -> None:
        found = {name: metrics[f"eval_{name}"] for name in ("cosine", "dot")}
        epoch = round(float(state.epoch), 3)
        # A resumed run comes by an epoch again that had ended, but was not saved.
        kept = [one for one in self.record["epochs"] if one["epoch"] < epoch]
        self.record["epochs"] = [*kept, {"epoch": epoch, **found}]
        _write(self.record, self.out)
        self.say(f"epoch {epoch:g}: dev Spearman {found['cosine']:.2f} by cosine, {found['dot']:.2f} by dot product")

    def on_save(self, args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        with written_aside(folder / SCALE) as aside:
            aside.write_text(json.dumps(self.loss.log_scale.item()), encoding="utf-8")


def _begin(recipe: Recipe, splits: Splits, out: Path, resume: bool) -> dict[str, Any]:
    """The record of this run: a new one, or that of the run which is resumed."""
    now: dict[str, Any] = {"recipe": asdict(recipe), "data": splits.fingerprint}
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"cannot train into {str(out)!r}: it is a file; name a folder")
    if (out / RECORD).is_file():
        try:
            found = json.loads((out / RECORD).read_text(encoding="utf-8"))
            before = {key: found[key] for key in now}
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"{str(out / RECORD)!r} is not a record of training; give another folder") from None
        if not resume:
            state = "a trained model" if found.get("finished") else "a run that can be resumed with --resume"
            raise FileExistsError(f"{str(out)!r} holds {state}; give another folder")
        other = [
            f"{name} was {old!r}, is {now['recipe'].get(name)!r}"
            for name, old in before["recipe"].items()
            if now["recipe"].get(name) != old
        ]
        if before["data"] != now["data"]:
            other.append("the pairs are others")
        if other:
            raise ValueError(
                f"{str(out)!r} was begun with other settings ({'; '.join(other)}); give them, or another folder"
            )
        return dict(found)
    if out.is_dir() and any(out.iterdir()):
        raise FileExistsError(f"{str(out)!r} is not empty, and no training was begun in it; give another folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot train into {str(out)!r}: {error.strerror or error}") from None
    record = {
        **now,
        "whymatch": __version__,
        "pairs": {name: str(pairs) for name, pairs in vars(splits).items() if pairs is not None},
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "epochs": [],
    }
    _write(record, out)
    return record


def _write(record: dict[str, Any], out: Path) -> None:
    with written_aside(out / RECORD) as aside:
        aside.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: the trainer's state is what it writes last."""
    whole = []
    for checkpoint in folder.glob("checkpoint-*"):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
            json.loads((checkpoint / SCALE).read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            continue
        whole.append(checkpoint)
    return max(whole, key=lambda checkpoint: int(checkpoint.name.rpartition("-")[2]), default=None)


def _taught(teacher: str, splits: Splits, device: str | None) -> list[float]:
    """Half a person's score and half the teacher's."""
    import torch

    model, _ = models.load(teacher, device)
    texts = list(dict.fromkeys(text for pair in splits.train.texts for text in pair))
    found = dict(zip(texts, model.encode(texts, show_progress_bar=False, convert_to_tensor=True), strict=True))
    a, b = (torch.stack([found[pair[side]] for pair in splits.train.texts]) for side in (0, 1))
    cosines = torch.cosine_similarity(a, b).tolist()
    return [(one + other) / 2 for one, other in zip(splits.train.scores, cosines, strict=True)]


def _finish(model: Any, record: dict[str, Any], out: Path) -> None:
    """Put the model in its place, whole, and what is no longer needed away."""
    from whymatch.training.card import card

    whole = out / ".whole"
    shutil.rmtree(whole, ignore_errors=True)
    model.save(str(whole), create_model_card=False)
    (whole / "README.md").write_text(card(record), encoding="utf-8")
    for part in sorted(whole.iterdir(), key=lambda part: part.name == "modules.json"):  # the last makes it a model
        target = out / part.name
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)
    whole.rmdir()
    _write(record, out)
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)


def _need_training() -> None:
    from sentence_transformers.util import is_training_available

    if not is_training_available():
        raise ModuleNotFoundError(
            "training needs the extra train (datasets, accelerate): pip install 'whymatch[train]'"
        )
