"""Make the README's measured tables from the committed results, between its markers.

python benchmarks/tables.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"


def significant(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def small(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def peers() -> str:
    results = json.loads((HERE / "results/peers.json").read_text())
    lines = [
        "| tokens | layer | whymatch | error | the paper's | error | faster | at equal error | "
        "retrivex | error | faster | at equal error |",
        "|" + "---|" * 12,
    ]
    for point in results["points"]:
        ours = next(run for run in point["whymatch"] if run["tolerance"] == 1e-3)
        cells = [str(point["tokens"]), str(point["layer"]), *times(ours)]
        for name in ("paper", "retrivex"):
            against = point["comparison"][name]
            # Rounded down: no point may look faster than it is.
            equal = f"{int(against['times_faster_at_equal_error']):,}×"
            cells += [*times(point[name]), f"{int(against['times_faster'])}×", equal]
        lines.append("| " + " | ".join(cells) + " |")
    machine = results["machine"]
    lines.append("")
    lines.append(
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, torch {machine['torch']}, {machine['date']}, "
        "all in one run (`make bench`)."
    )
    return "\n".join(lines)


def times(peer: dict[str, Any]) -> tuple[str, str]:
    return f"{significant(peer['seconds'])} s", small(peer["error"])


def exactness() -> str:
    results = json.loads((HERE / "results/exactness.json").read_text())
    forms = ["folded, cosine", "folded, dot", "paper, cosine", "paper, dot"]
    lines = [
        "| layer | tolerance | pairs | " + " | ".join(forms) + " | nodes, median / most |",
        "|---|---|---|" + "---|" * len(forms) + "---|",
    ]
    for row in sorted(results["rows"], key=lambda row: (-row["tolerance"], row["layer"])):
        errors = [small(row["largest_error"][form]) for form in forms]
        counts = f"{row['nodes_median']:.0f} / {row['nodes_largest']}"
        cells = [str(row["layer"]), small(row["tolerance"]), str(row["pairs"]), *errors, counts]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def floor() -> str:
    results = json.loads((HERE / "results/floor.json").read_text())
    lines = ["| tokens | layer | nodes | seconds | floor, seconds | ÷ floor |", "|" + "---|" * 6]
    for row in results["rows"]:
        times = [significant(row["seconds"]), significant(row["floor_seconds"]), f"{row['ratio']:.2f}"]
        cells = [str(row["tokens"]), str(row["layer"]), str(row["nodes"]), *times]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# Table 1 of the paper: base model, whether it is adjusted, Spearman by cosine and by dot product.
PAPER = (
    ("S-MPNet", True, 85.9, 82.6),
    ("S-MPNet", False, 87.6, 83.9),
    ("S-distilRoBERTa", True, 85.7, 80.7),
    ("S-distilRoBERTa", False, 86.3, 77.4),
    ("MPNet", True, 85.1, 80.4),
    ("MPNet", False, 86.3, 84.2),
    ("distilRoBERTa", True, 80.4, 73.4),
    ("distilRoBERTa", False, 84.6, 76.2),
    ("RoBERTa", True, 77.7, 68.8),
    ("RoBERTa", False, 86.1, 68.8),
)


def table1() -> str:
    results = json.loads((HERE / "results/table1.json").read_text())
    lines = ["| model | training | seeds | cosine | dot |", "|" + "---|" * 5]
    untrained = results["untrained"]
    for name, found in (("none", untrained["unmodified"]), ("none, shifted", untrained["shifted"])):
        lines.append(f"| all-MiniLM-L6-v2 | {name} | – | {found['cosine']:.1f} | {found['dot']:.1f} |")
    names = list(dict.fromkeys(run["recipe"] for run in results["runs"]))
    for name in names:
        runs = [run["test"] for run in results["runs"] if run["recipe"] == name]
        cells = [_mean([run[by] for run in runs]) for by in ("cosine", "dot")]
        lines.append(f"| all-MiniLM-L6-v2 | {name} | {len(runs)} | {cells[0]} | {cells[1]} |")
    for model, adjusted, cosine, dot in PAPER:
        training = "adjusted, dot" if adjusted else "plain, cosine"
        lines.append(f"| {model} (the paper's) | {training} (the paper's) | – | {cosine} | {dot} |")
    machine = results["machine"]
    lines += ["", f"Ours: mean ± half the range over the seeds, on {machine['cores']} cores of an {machine['cpu']}."]
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    spread = (max(values) - min(values)) / 2
    return f"{sum(values) / len(values):.1f}" + (f" ± {spread:.1f}" if len(values) > 1 else "")


def shift() -> str:
    results = json.loads((HERE / "results/training.json").read_text())
    rates, rounds = results["steps_per_second"], results["times_slower_by_round"]
    return (
        f"Training the default model on batches of {results['batch_size']} pairs of STS-B, taking turns in one run: plain "
        f"{rates['plain']:.2f} steps per second, adjusted {rates['adjusted']:.2f}. The shift costs "
        f"{results['times_slower']:.2f}× the time (rounds from {min(rounds):.2f} to {max(rounds):.2f})."
    )


def filled(text: str, name: str, table: str) -> str:
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"no marks for the table {name!r}")
    return marks.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def main() -> None:
    docs = HERE.parent / "docs"
    places = (
        (README, "peers", peers),
        (docs / "method.md", "exactness", exactness),
        (docs / "method.md", "floor", floor),
        (docs / "training.md", "table1", table1),
        (docs / "training.md", "shift", shift),
    )
    for path, name, make in places:
        before = path.read_text(encoding="utf-8")
        after = filled(before, name, make())
        if "--check" in sys.argv and before != after:
            sys.exit(f"{path.name} does not show the committed results: run python benchmarks/tables.py")
        path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
