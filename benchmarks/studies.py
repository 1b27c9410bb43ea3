"""Run the studies behind docs/studies.md, cheap ones first, and keep their small files there.

    python benchmarks/studies.py --data stsb-test.csv --out OUT --model all-mpnet-base-v2
    python benchmarks/studies.py --data stsb-test.csv --out OUT --changes negations.tsv --several MODEL MODEL …

Both go on where they were interrupted. A single model after ``--several``, as one that is dear and gets fewer
``--pairs``, has a folder of its own. ``--keep`` runs nothing, and copies what is finished. The folder of a model
holds the JSON files and figures of its studies; texts and the report stay in OUT. Then ``benchmarks/tables.py`` makes
the page's table.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from whymatch import studies
from whymatch.corpus.pairs import read_scored_pairs
from whymatch.studies import report
from whymatch.studies.experiment import Experiment, Result
from whymatch.studies.negation import read_changes
from whymatch.truth.data import sample

DOCS = Path(__file__).parent.parent / "docs/studies"
SEVERAL = "several"
LARGEST = 600_000  # bytes of a file that is kept

# The paper's layers. A text costs about ten times as much at layer 9 of S-MPNet as at layer 11, and some fifty times at
# layer 7, where paths are followed in pieces. Sums alone, for the accuracy, are cheap above layer 8 and dear below.
PAIRS = 1000
LAYERS = {12: {7: 50, 9: 100, 11: None, 12: None}, 6: {3: 200, 4: None, 5: None, 6: None}}
SUMS = {12: {**dict.fromkeys(range(9), 3), **dict.fromkeys(range(9, 13), 50)}, 6: dict.fromkeys(range(7), 50)}
SHOWN = {12: [7, 8, 9, 10, 11, 12], 6: list(range(7))}
OF_LAYERS = ("distribution", "cumulative", "models", "pos", "failures", "agreement")
FEW, CHANGED = 200, 60  # pairs and changes for several models, explained as whymatch does when nobody chooses


def run_one(models: list[str], data: Path, out: Path, pairs: int) -> dict[str, Result]:
    """Run the paper's studies of a model, and of its adjusted form where that is given too."""
    scored = read_scored_pairs(data)
    depth = Experiment(models, scored, out).subjects[0].num_layers

    def experiment(layers: object) -> Experiment:
        return Experiment(models, scored, out, pairs=pairs, layers=layers, say=print, progress=True)  # type: ignore[arg-type]

    usual = experiment(LAYERS.get(depth))
    results = {name: studies.run(name, usual) for name in OF_LAYERS}
    results["layers"] = studies.run("layers", experiment(SHOWN.get(depth)))
    results["performance"] = studies.run("performance", Experiment(models, scored, out, say=print))
    results["accuracy"] = studies.run("accuracy", experiment(SUMS.get(depth)))
    report.write({name: results[name] for name in studies.NAMES if name in results}, usual)
    return results


def run_several(given: argparse.Namespace, out: Path) -> dict[str, Result]:
    """Run what the paper's authors asked next, for several models."""
    changed = [change for path in given.changes for change in sample(read_changes(path), given.changed, 0)]
    experiment = Experiment(
        given.several,
        read_scored_pairs(given.data),
        out,
        pairs=given.pairs or FEW,
        changes=changed,
        parser=given.parser,
        say=print,
        progress=True,
    )
    names = [name for name in ("lexical", "roles", "negation") if studies.why_skipped(name, experiment) is None]
    return {name: studies.run(name, experiment) for name in names}


def keep(out: Path, folder: Path) -> None:
    """Copy the small files of finished studies into a folder of the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted([*out.glob("*.json"), *out.glob("*.svg")]):
        if path.stat().st_size > LARGEST:
            print(f"{path.name} is not kept: it has {path.stat().st_size:,} bytes")
        else:
            shutil.copyfile(path, folder / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--several", nargs="+", default=[])
    parser.add_argument("--changes", type=Path, action="append", default=[])
    parser.add_argument("--parser")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--changed", type=int, default=CHANGED)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    studied = given.model or given.several
    name = Path(studied[0].rstrip("/")).name if given.model or len(studied) == 1 else SEVERAL
    out = given.out / name
    if not given.keep:
        if given.model:
            run_one(given.model, given.data, out, given.pairs or PAIRS)
        else:
            run_several(given, out)
    keep(out, DOCS / name)


if __name__ == "__main__":
    main()
