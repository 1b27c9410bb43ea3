"""Reading the scored pairs that a model is trained, chosen and evaluated on."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whymatch.corpus.pairs import Pairs, read_scored_pairs
from whymatch.corpus.tables import FORMATS

# The names of splits, in file names and on the hub.
DEV = ("dev", "validation", "valid", "val")
TEST = ("test",)

HELD_OUT = 10  # where there is no dev split, one training pair of so many becomes one


@dataclass(frozen=True)
class Splits:
    """The pairs to train on, to choose the best epoch by, and to evaluate on."""

    train: Pairs
    dev: Pairs
    test: Pairs | None

    def __str__(self) -> str:
        parts = {"train": self.train, "dev": self.dev, "test": self.test}
        return "\n".join(f"{name}: {pairs if pairs is not None else 'none'}" for name, pairs in parts.items())

    @property
    def fingerprint(self) -> str:
        """Return a hash of all pairs and scores."""
        digest = hashlib.sha256()
        for pairs in (self.train, self.dev, self.test):
            digest.update(repr((pairs.texts, pairs.scores) if pairs else None).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def read_splits(
    data: str,
    dev: str | None = None,
    test: str | None = None,
    columns: Sequence[str] | None = None,
    score_range: tuple[float, float] | None = None,
    seed: int = 0,
) -> Splits:
    """Read scored pairs.

    Args:
        data: the pairs to train on: a file, or the name of a dataset on the hub, ``name[:configuration]``.
        dev: the file to choose the best epoch by; None looks for one beside ``data``, or else holds pairs out.
        test: the file to evaluate on; None looks for one beside ``data``.
        columns: the names of the columns of the two texts and of the score.
        score_range: the lowest and the highest possible score.
        seed: decides which pairs are held out.
    """
    if Path(data).suffix.lower() not in FORMATS and not Path(data).is_file():
        if dev or test:
            raise ValueError(f"{data!r} is not a file, and a dataset brings its own splits: drop --dev and --test")
        return _from_hub(data, columns, score_range, seed)
    path = Path(data)
    train = read_scored_pairs(path, columns, score_range)
    dev_path, test_path = (
        Path(given) if given else _beside(path, names) for given, names in ((dev, DEV), (test, TEST))
    )
    test_pairs = read_scored_pairs(test_path, columns, train.score_range) if test_path else None
    if dev_path:
        return Splits(train, read_scored_pairs(dev_path, columns, train.score_range), test_pairs)
    return Splits(*_hold_out(train, seed), test_pairs)


def _beside(path: Path, names: Sequence[str]) -> Path | None:
    """Find the file whose name is this one's with the name of another split in the place of "train"."""
    if "train" not in path.name:
        return None
    return next((file for name in names if (file := path.with_name(path.name.replace("train", name))).is_file()), None)


def _hold_out(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs]:
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    count = max(2, len(pairs) // HELD_OUT)
    if len(pairs) < 2 * count:
        raise ValueError(f"{pairs.source} has {len(pairs)} pairs: too few to train on")

    def part(numbers: Sequence[int], source: str) -> Pairs:
        chosen = sorted(numbers)
        texts, scores = [pairs.texts[i] for i in chosen], [pairs.scores[i] for i in chosen]
        bad = pairs.bad if source == pairs.source else []
        return Pairs(source, pairs.columns, texts, scores, bad, pairs.score_range)

    return part(order[count:], pairs.source), part(order[:count], f"{pairs.source}, held out")


def _from_hub(name: str, columns: Sequence[str] | None, score_range: tuple[float, float] | None, seed: int) -> Splits:
    """Read a dataset by its name, ``name[:configuration]``."""
    import tempfile

    check_training_extra()
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    dataset, _, configuration = name.partition(":")
    try:
        parts = load_dataset(dataset, configuration or None)
    except Exception as error:
        raise ValueError(
            f"cannot read {name!r}: there is no such file, and no dataset of that name in the cache or on the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
        ) from None
    if "train" not in parts:
        raise ValueError(f"the dataset {name!r} has no split called train; it has {', '.join(parts)}")
    with tempfile.TemporaryDirectory() as folder:

        def part(names: Sequence[str], score_range: tuple[float, float] | None) -> Pairs | None:
            split = next((each for each in names if each in parts), None)
            if split is None:
                return None
            file = Path(folder) / f"{name.replace('/', '.').replace(':', '.')}.{split}.parquet"
            parts[split].to_parquet(file)
            return read_scored_pairs(file, columns, score_range)

        train = part(["train"], score_range)
        assert train is not None
        dev, test = (part(names, train.score_range) for names in (DEV, TEST))
    return Splits(train, dev, test) if dev else Splits(*_hold_out(train, seed), test)


def check_training_extra() -> None:
    """Raise an error unless the extra ``train`` is installed."""
    from sentence_transformers.util import is_training_available

    if not is_training_available():
        raise ModuleNotFoundError(
            "training needs the extra train (datasets, accelerate): pip install 'whymatch[train]'"
        )
