"""Training an encoder, adjusted or plain, on scored pairs, with the paper's settings."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import PrinterCallback, TrainerCallback, set_seed

from whymatch import __version__
from whymatch.encoders import loading
from whymatch.encoders.adjusted import adjust, shift_of
from whymatch.files import lock_folder, make_folder, read_json, read_sealed_json, write_json, write_sealed_json
from whymatch.progress import bar
from whymatch.training.card import card
from whymatch.training.data import Splits, check_training_extra
from whymatch.training.loss import PairLoss, usual_products
from whymatch.training.sts import evaluate_sts

RECORD = "training.json"
CHECKPOINTS = "checkpoints"
SCALE = "scale.json"
SAMPLE = 256  # texts from which the scale is computed
SAME = 0.05  # correlations (times 100) that differ by less than this differ by rounding only


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; the defaults are the paper's."""

    base: str = loading.DEFAULT_MODEL
    objective: Literal["dot", "cosine"] = "dot"
    adjusted: bool = True
    normalized: bool = False  # whether embeddings have length 1 before they are shifted
    epochs: int = 5
    batch_size: int = 16
    lr: float = 2e-5
    weight_decay: float = 0.1
    warmup: float = 0.1  # of all steps
    seed: int = 0
    scale: Literal["one", "usual", "learned"] = "usual"  # of the dot product, in the loss
    centred: bool = False  # whether the usual dot product of unrelated texts, instead of 0, stands for the score 0
    own: float = 0.0  # the weight of a term that asks a text's dot product with itself to be 1
    teacher: str | None = None  # a model whose cosines count as much as the labels
    # Of matrix products in training: weights, losses and evaluations are float32 either way.
    precision: Literal["float32", "bfloat16"] = "float32"

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
            "precision": (self.precision in ("float32", "bfloat16"), "give float32 or bfloat16"),
        }
        for name, (right, advice) in checks.items():
            if not right:
                raise ValueError(f"{name}={getattr(self, name)!r} is not possible; {advice}")
        if self.normalized and not self.adjusted:
            raise ValueError("normalized=True is about the shift of an adjusted model, and this one is plain; drop one")
        for name in ("scale", "centred", "own"):
            value, usual = getattr(self, name), type(self).__dataclass_fields__[name].default
            if self.objective == "cosine" and value != usual:
                raise ValueError(f"{name}={value!r} is about dot products, and the objective is the cosine; drop one")


def train(
    recipe: Recipe,
    splits: Splits,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda _: None,
    device: str | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train a model, keep the epoch that is best on the dev split, and evaluate it on the test split.

    Args:
        recipe: how it is trained.
        splits: what it is trained, chosen and evaluated on.
        out: the folder of the new model. It holds a model only when training has ended; until then, it holds what is
            needed to resume.
        resume: continue the run that was interrupted in this folder.
        say: called with a line of text for each epoch.
        device: where the model is trained; None leaves the choice to sentence-transformers.
        progress: show a progress bar.

    Returns:
        The record that is also written to ``training.json``.
    """
    check_training_extra()
    out = Path(out)
    record = _begin(recipe, splits, out, resume)
    if record.get("finished"):
        say(f"{str(out)!r} is finished already: nothing to resume")
        return record
    for name, pairs in vars(splits).items():
        if pairs is not None and len(set(pairs.scores)) < 2:
            raise ValueError(f"all {name} pairs from {pairs.source} have one score: no ranking can be learnt from them")
    set_seed(recipe.seed)
    # Models are loaded before anything is written, so that a wrong name leaves nothing behind.
    model = _base(recipe, device)
    identity = loading.identity(model)
    if record.setdefault("base_identity", identity) != identity:
        raise ValueError(
            f"{str(out)!r} was begun with other weights of {recipe.base!r}; give those again, or another folder"
        )
    labels = splits.train.scores if recipe.teacher is None else _teacher_labels(recipe.teacher, splits, device)
    with lock_folder(make_folder(out / CHECKPOINTS)):
        write_sealed_json(out / RECORD, record, indent=1)
        _train(model, labels, recipe, splits, out, record, say, progress)
        _finish(model, record, out)
    say(f"written: {out}")
    return record


def _base(recipe: Recipe, device: str | None) -> Any:
    model, _ = loading.load(recipe.base, device)
    shift = shift_of(model)
    if shift is None:
        model = adjust(model, normalized=recipe.normalized) if recipe.adjusted else model
    elif not recipe.adjusted:
        raise ValueError(f"{recipe.base!r} is an adjusted model; a plain one is trained from a plain base")
    elif recipe.normalized and not shift.normalized:
        raise ValueError(f"{recipe.base!r} is an adjusted model that does not normalize; drop normalized=True")
    model.similarity_fn_name = recipe.objective
    return model


def _train(
    model: Any,
    labels: list[float],
    recipe: Recipe,
    splits: Splits,
    out: Path,
    record: dict[str, Any],
    say: Callable[[str], None],
    progress: bool,
) -> None:
    from datasets import Dataset

    columns = {"sentence1": [a for a, _ in splits.train.texts], "sentence2": [b for _, b in splits.train.texts]}
    dot, device = recipe.objective == "dot", torch.device(model.device).type
    scale, zero = _scale_and_zero(model, recipe, columns["sentence1"], columns["sentence2"]) if dot else (1.0, 0.0)
    loss = PairLoss(
        model,
        recipe.objective,
        scale,
        zero,
        learned=dot and recipe.scale == "learned",
        own=recipe.own,
        fewer_digits=recipe.precision == "bfloat16",
    )
    reporter = _Reporter(out, record, loss, say, progress)
    trainer = _Trainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(out / CHECKPOINTS),
            num_train_epochs=recipe.epochs,
            per_device_train_batch_size=recipe.batch_size,
            learning_rate=recipe.lr,
            learning_rate_mapping={"^log_scale$": 1e-2} if loss.log_scale.requires_grad else {},
            weight_decay=recipe.weight_decay,
            warmup_steps=recipe.warmup,
            seed=recipe.seed,
            # A model that reads every text with a prompt is trained with it.
            prompts=model.prompts[model.default_prompt_name] if model.default_prompt_name else None,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            load_best_model_at_end=True,
            metric_for_best_model=f"eval_{recipe.objective}",
            greater_is_better=True,
            logging_strategy="epoch",
            disable_tqdm=True,  # the reporter shows progress
            report_to="none",
            use_cpu=device == "cpu",
            dataloader_pin_memory=device == "cuda",
        ),
        train_dataset=Dataset.from_dict({**columns, "score": labels}),
        loss=loss,
        evaluator=_DevEvaluator(splits, recipe.objective),
        callbacks=[reporter],
    )
    trainer.remove_callback(PrinterCallback)
    last = _last_checkpoint(out / CHECKPOINTS)
    if last is not None:
        loss.log_scale.data.fill_(_read_scale(last))
        say(f"resuming from {last.name}")
    with reporter:
        outcome = trainer.train(resume_from_checkpoint=None if last is None else str(last))
    model.eval()
    best_checkpoint = trainer.state.best_model_checkpoint
    if best_checkpoint is not None:  # the trainer reads back the model, but not the loss
        loss.log_scale.data.fill_(_read_scale(Path(best_checkpoint)))
    shift, scale = shift_of(model), loss.log_scale.exp().item()
    if shift is not None and len(model) == 1 and scale != 1:
        # The model's own scores become those that were compared with people's.
        shift.scale(scale**0.5)
        record["factor"] = scale**0.5
    best = max(record["epochs"], key=lambda epoch: float(epoch[recipe.objective]))
    record |= {
        "steps": int(outcome.global_step),
        "scale": scale if dot else None,
        "zero": zero if dot else None,
        "normalized": shift is not None and shift.normalized,
        "best_epoch": best["epoch"],
        "dev": evaluate_sts(model, splits.dev),
    }
    if splits.test is not None:
        record["test"] = evaluate_sts(model, splits.test)
    if abs(record["dev"][recipe.objective] - best[recipe.objective]) > SAME:
        raise OSError(
            f"the weights of epoch {best['epoch']:g}, the best, could not be read back from "
            f"{str(out / CHECKPOINTS)!r}; train into another folder"
        )
    record["finished"] = True


def _scale_and_zero(model: Any, recipe: Recipe, firsts: list[str], seconds: list[str]) -> tuple[float, float]:
    """Compute what a dot product is multiplied by, and what is subtracted from it first, to compare it with labels."""
    if recipe.scale == "one" and not recipe.centred:
        return 1.0, 0.0
    # Files are often ordered by source, so texts half a file apart are unrelated.
    middle = len(seconds) // 2
    own, others = usual_products(model, firsts[:SAMPLE], (seconds[middle:] + seconds[:middle])[:SAMPLE])
    zero = others if recipe.centred else 0.0
    if recipe.scale == "one":
        return 1.0, zero
    if own - zero <= 1e-6 * own:
        raise ValueError(
            f"before training, texts have a product of {own:.3g} with themselves and of {others:.3g} with others, "
            "which does not tell them apart; "
            + ("drop centred=True" if recipe.centred else "give another base, or scale='one'")
        )
    return 1 / (own - zero), zero


def _read_scale(checkpoint: Path) -> float:
    """Read the logarithm of the scale that was saved with a checkpoint."""
    return float(read_json(checkpoint / SCALE))


class _Trainer(SentenceTransformerTrainer):  # type: ignore[misc]
    """A trainer that does not apply weight decay to the scale."""

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        return [name for name in super().get_decay_parameter_names(model) if name != "log_scale"]


class _DevEvaluator(BaseEvaluator):  # type: ignore[misc]
    """Evaluates the model on the dev split after each epoch."""

    def __init__(self, splits: Splits, objective: str) -> None:
        super().__init__()
        self.splits = splits
        self.primary_metric = objective

    def __call__(self, model: Any, *_args: Any, **_kwargs: Any) -> dict[str, float]:
        return evaluate_sts(model, self.splits.dev)


class _Reporter(TrainerCallback):  # type: ignore[misc]
    """Shows progress, records each epoch, and saves the scale of the loss with each checkpoint."""

    def __init__(
        self, out: Path, record: dict[str, Any], loss: Any, say: Callable[[str], None], progress: bool
    ) -> None:
        self._out, self._record, self._loss, self._say = out, record, loss, say
        self._bar = bar("steps", enabled=progress)
        self._since = time.perf_counter()

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._record["seconds"] = self._seconds()

    def _seconds(self) -> float:
        """Return the seconds of training so far, including those of interrupted runs."""
        now = time.perf_counter()
        seconds = float(self._record.get("seconds", 0.0)) + now - self._since
        self._since = now
        return seconds

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        self._bar.update(state.global_step, state.max_steps)

    def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: dict[str, float], **_kwargs: Any) -> None:
        scores = {name: metrics[f"eval_{name}"] for name in ("cosine", "dot")}
        epoch = round(float(state.epoch), 3)
        # A resumed run repeats an epoch that had ended but had not been saved.
        earlier = [each for each in self._record["epochs"] if each["epoch"] < epoch]
        self._record |= {"epochs": [*earlier, {"epoch": epoch, **scores}], "seconds": self._seconds()}
        write_sealed_json(self._out / RECORD, self._record, indent=1)
        self._say(f"epoch {epoch:g}: dev Spearman {scores['cosine']:.2f} by cosine, {scores['dot']:.2f} by dot product")

    def on_save(self, args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_json(folder / SCALE, self._loss.log_scale.item())


def _begin(recipe: Recipe, splits: Splits, out: Path, resume: bool) -> dict[str, Any]:
    """Start a record, or read that of the run that is resumed."""
    now: dict[str, Any] = {"recipe": asdict(recipe), "data": splits.fingerprint}
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"cannot train into {str(out)!r}: it is a file; name a folder")
    if (out / RECORD).is_file():
        try:
            earlier = read_sealed_json(out / RECORD)
            # Options that an older whymatch did not know had the values that are now their defaults.
            earlier["recipe"] = asdict(Recipe()) | earlier["recipe"]
            before = {key: earlier[key] for key in now}
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{str(out / RECORD)!r} is not a record of training, or damaged; give another folder"
            ) from None
        if not resume:
            state = "a trained model" if earlier.get("finished") else "a run that can be resumed with --resume"
            raise FileExistsError(f"{str(out)!r} holds {state}; give another folder")
        other = [
            f"{name} was {old!r}, is {now['recipe'].get(name)!r}"
            for name, old in before["recipe"].items()
            if now["recipe"].get(name) != old
        ]
        if before["data"] != now["data"]:
            other.append("the pairs differ")
        if other:
            raise ValueError(
                f"{str(out)!r} was begun with other settings ({'; '.join(other)}); give them, or another folder"
            )
        return dict(earlier)
    if out.is_dir() and any(out.iterdir()):
        raise FileExistsError(f"{str(out)!r} is not empty, and has no training to resume; give another folder")
    return {
        **now,
        "whymatch": __version__,
        "pairs": {name: str(pairs) for name, pairs in vars(splits).items() if pairs is not None},
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "epochs": [],
    }


def _last_checkpoint(folder: Path) -> Path | None:
    """Find the newest complete checkpoint: the scale is what is written last.

    Those that were cut short are removed. The trainer, which keeps the newest few, would count them.
    """
    complete = []
    for checkpoint in folder.glob("checkpoint-*"):
        try:
            read_json(checkpoint / "trainer_state.json")
            _read_scale(checkpoint)
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            shutil.rmtree(checkpoint, ignore_errors=True)
            continue
        complete.append(checkpoint)
    return max(complete, key=lambda checkpoint: int(checkpoint.name.rpartition("-")[2]), default=None)


def _teacher_labels(teacher: str, splits: Splits, device: str | None) -> list[float]:
    """Average people's scores with the cosines of a teacher."""
    model, _ = loading.load(teacher, device)
    texts = list(dict.fromkeys(text for pair in splits.train.texts for text in pair))
    vectors = dict(zip(texts, model.encode(texts, show_progress_bar=False, convert_to_tensor=True), strict=True))
    a, b = (torch.stack([vectors[pair[side]] for pair in splits.train.texts]) for side in (0, 1))
    cosines = torch.cosine_similarity(a, b).tolist()
    return [(score + cosine) / 2 for score, cosine in zip(splits.train.scores, cosines, strict=True)]


def _finish(model: Any, record: dict[str, Any], out: Path) -> None:
    """Move the complete model into its folder, and remove the checkpoints."""
    whole = out / ".whole"
    shutil.rmtree(whole, ignore_errors=True)
    model.save(str(whole), create_model_card=False)
    (whole / "README.md").write_text(card(record, out.resolve().name), encoding="utf-8")
    # The list of modules comes last: with it, the folder becomes a model.
    for part in sorted(whole.iterdir(), key=lambda part: part.name == "modules.json"):
        target = out / part.name
        if target.is_dir():
            shutil.rmtree(target)
        part.replace(target)
    whole.rmdir()
    write_sealed_json(out / RECORD, record, indent=1)
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
