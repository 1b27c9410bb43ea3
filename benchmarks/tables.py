"""Make the README's measured tables from the committed results, between its markers.

python benchmarks/tables.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from whymatch.studies.performance import PAPER
from whymatch.studies.verdicts import CLAIMS

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
FURTHER = {
    "insertion_deletion": "order of words, 0 random to 1 best",
    "chunks": "links of chunks, F1",
    "answers": "sentence with the answer, MRR",
    "sanity": "sanity, share of the checks passed",
}
STUDIES = HERE.parent / "docs/studies"
STUDIED = ("all-mpnet-base-v2", "all-MiniLM-L6-v2")  # in the order of the page: the paper's own model first


def significant(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def small(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"


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


def entries() -> str:
    results = json.loads((HERE / "results/entries.json").read_text())
    lines = [
        "| model | layer | reference | pairs | error of the score | error of an entry | estimated | nodes |",
        "|" + "---|" * 8,
    ]
    for model, result in results.items():
        for row in sorted(result["rows"], key=lambda row: (row["reference"] == "reversed", row["layer"])):
            errors = ("largest_error_of_a_score", "largest_error_of_an_entry", "largest_estimate")
            cells = [model, row["layer"], row["reference"], row["pairs"], *(small(row[name]) for name in errors)]
            lines.append("| " + " | ".join(map(str, [*cells, f"{row['nodes_median']:.0f}"])) + " |")
    return "\n".join(lines)


def compare() -> str:
    results = json.loads((HERE / "results/compare.json").read_text())
    lines = ["| model | layer | time, against before | largest difference | nodes | nodes before |", "|" + "---|" * 6]
    for model, result in results.items():
        for row in result["rows"]:
            nodes, before = (sum(map(sum, row[name])) for name in ("nodes", "nodes_before"))
            cells = [model, row["layer"], f"{row['ratio']:.2f}×", small(row["largest_difference"]), nodes, before]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


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


def deep() -> str:
    results = json.loads((HERE / "results/deep.json").read_text())
    lines = []
    for model, result in results["models"].items():
        lines += [f"**{model}**, pairs of two texts of so many tokens", ""]
        lines += ["| tokens | what | path, layer | nodes | seconds | ÷ encode | ÷ floor | error |", "|" + "---|" * 8]
        for row in result["pairs"]:
            nodes = " + ".join(map(str, row["nodes"])) if row["path"] != "secant" else "–"
            cells = [row["tokens"][0], row["way"], f"{row['path']}, {row['layer']}", nodes, significant(row["seconds"])]
            cells += [significant(row["times_encode"]), significant(row["times_floor"]), small(row["error"])]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        passage = result["passage"]
        lines += [
            "",
            f"A query of {passage['words'][0]} words against a passage of {passage['words'][1]} "
            f"({passage['tokens'][1]} tokens), `fast`, in times the passage's `encode`: "
            f"highlights {passage['highlight_times_encode']:.1f}, "
            f"by sentences {passage['sentences_times_encode']:.1f}, matrix {passage['matrix_times_encode']:.1f}; "
            f"by a relay through the same blocks, highlights {passage['relay_highlight_times_encode']:.1f}, "
            f"matrix {passage['relay_matrix_times_encode']:.1f}.",
            "",
        ]
        if "paper" in result:
            lines += [
                "The paper's algorithm, 50 steps (32 of the 768 backward passes of each were timed), and whymatch "
                "with at most a tenth of its error (retrivex, the other implementation, refuses this model):",
                "",
            ]
            heads = ["tokens", "layer", "the paper's", "error"]
            heads += [head for path in ("straight", "relay", "secant") for head in (path, "faster")]
            lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
            for row in result["paper"]:
                cells = [
                    row["tokens"],
                    row["layer"],
                    f"{significant(row['paper_seconds'])} s",
                    small(row["paper_error"]),
                ]
                for path in ("straight", "relay", "secant"):
                    ours = row[path]
                    cells += [
                        f"{significant(ours['seconds'])} s, {small(ours['error'])}",
                        f"{int(ours['times_faster'])}×",
                    ]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
            lines.append("")
    machine = results["machine"]
    lines.append(f"One core of an {machine['cpu']}, torch {machine['torch']}, {machine['date']}.")
    return "\n".join(lines)


def table1() -> str:
    models = json.loads((HERE / "results/table1.json").read_text())
    # The paper's own model leads.
    order = sorted(models, key=lambda base: (base != "all-mpnet-base-v2", base))
    lines = ["| model | training | seeds | cosine | dot |", "|" + "---|" * 5]
    for base in order:
        for name, spearman in models[base]["untrained"].items():
            lines.append(f"| {base} | none, {name} | – | {spearman['cosine']:.1f} | {spearman['dot']:.1f} |")
        trained: dict[str, list[dict[str, float]]] = {}
        for run in models[base]["trained"]:
            digits = ", in bfloat16" if run.get("precision") == "bfloat16" else ""
            trained.setdefault(run["recipe"] + digits, []).append(run["test"])
        for name, runs in trained.items():
            cells = [_mean([run[by] for run in runs]) for by in ("cosine", "dot")]
            lines.append(f"| {base} | {name} | {len(runs)} | {cells[0]} | {cells[1]} |")
    for model, (cosine, dot) in PAPER.items():
        base, kind = model.split(", ")
        training = "adjusted-dot" if kind == "adjusted" else "plain-cosine"
        lines.append(f"| {base} (the paper's) | {training} (the paper's) | – | {cosine} | {dot} |")
    machines = {f"{m['cores']} cores of an {m['cpu']}" for m in (models[base]["machine"] for base in order)}
    lines += [
        "",
        f"Ours: mean ± half the range over the seeds, on {' and '.join(sorted(machines))}.",
        "",
        "What was tried to make the dot product free: `--objective dot --epochs 1`, one seed, and besides:",
        "",
        "| model | besides | dev, cosine | dev, dot | test, cosine | test, dot |",
        "|" + "---|" * 6,
    ]
    for base in order:
        for run in models[base]["tried"]:
            cells = [f"{run[split][by]:.1f}" for split in ("dev", "test") for by in ("cosine", "dot")]
            name = run["recipe"] if run["recipe"] == "nothing" else f"`--{run['recipe']}`"
            lines.append(f"| {base} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(values: list[float]) -> str:
    spread = (max(values) - min(values)) / 2
    return f"{sum(values) / len(values):.1f}" + (f" ± {spread:.1f}" if len(values) > 1 else "")


def shift() -> str:
    results = json.loads((HERE / "results/training.json").read_text())
    rates, rounds = results["steps_per_second"], results["times_slower_by_round"]
    return (
        f"Training the default model on batches of {results['batch_size']} pairs of STS-B, taking turns in one run: "
        f"plain {rates['plain']:.2f} steps per second, adjusted {rates['adjusted']:.2f}. The shift costs "
        f"{results['times_slower']:.2f}× the time (rounds from {min(rounds):.2f} to {max(rounds):.2f})."
    )


def many() -> str:
    results = json.loads((HERE / "results/many.json").read_text())
    machine = results["machine"]
    rates = {(row["layer"], row["tokens"]): row["texts_per_second_and_core"] for row in results["rates"]}
    layers, lengths = (sorted({key[i] for key in rates}) for i in (0, 1))
    lines = ["Texts per second and core, decomposed to a tolerance of 1e-3:", ""]
    lines += ["| layer | " + " | ".join(f"{length} tokens" for length in lengths) + " |"]
    lines += ["|" + "---|" * (1 + len(lengths))]
    for layer in layers:
        lines.append(f"| {layer} | " + " | ".join(significant(rates[layer, length]) for length in lengths) + " |")
    lines += ["", "What a text takes on disk, whatever the layer, and what smaller numbers change (at layer 5):", ""]
    lines += [
        "| tokens | stored as | bytes | change of a score | of an entry | largest error of a sum |",
        "|" + "---|" * 6,
    ]
    for row in results["precision"]:
        changes = [row["largest_change_of_score"], row["largest_change_of_an_entry"], row["largest_error"]]
        cells = [str(row["tokens"]), row["precision"], f"{row['bytes_per_text']:,.0f}", *map(small, changes)]
        lines.append("| " + " | ".join(cells) + " |")
    hit, over, flat = results["hit"], results["overhead"], results["memory"]
    seen, early = next(point for point in flat["mib"] if point[0] >= flat["rows"] / 5)
    lines += [
        "",
        f"- Explaining a stored hit of {hit['tokens']} tokens for a decomposed query of {hit['query_tokens']}: "
        f"{hit['milliseconds_median']:.2f} ms.",
        f"- A batch takes {over['ratio']:.2f}× the time of the engine alone ({over['rows']:,} rows of short texts, "
        "layer 5).",
        f"- Memory over {flat['rows']:,} rows (short texts, output layer; pages of mapped files included): "
        f"{early:.0f} MiB after {seen:,} of them, {flat['mib'][-1][1]:.0f} MiB at the end.",
    ]
    summary = "; ".join(
        f"{row['engine']} on {row['cores']} core{'s' if row['cores'] > 1 else ''} {row['rows_per_second']:.0f}"
        for row in results["engines"]
    )
    lines.append(f"- Rows per second at layer 5, short texts, starting included: {summary}.")
    seconds = 1 / rates[5, 32]
    size = next(r["bytes_per_text"] for r in results["precision"] if (r["tokens"], r["precision"]) == (32, "float16"))
    lines += ["", "On paper, for texts of 32 tokens at layer 5, stored as float16:", ""]
    lines += ["| texts | core-hours | on 1,000 cores | stored | to move at 10 Gbit/s |", "|" + "---|" * 5]
    for count in (1e6, 1e9):
        hours, stored = count * seconds / 3600, count * size
        lines.append(
            f"| {count:,.0f} | {hours:,.0f} | {_span(3.6 * hours)} | {_bytes(stored)} | {_span(stored * 8 / 1e10)} |"
        )
    lines += [
        "",
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, torch {machine['torch']}, {machine['date']}.",
    ]
    return "\n".join(lines)


def index() -> str:
    results = json.loads((HERE / "results/index.json").read_text())
    machine, rows = results["machine"], results["rows"]
    stores = list(dict.fromkeys(row["store"] for row in rows))
    lines = [
        "What building an index costs, as a multiple of `encode` of the same passages (`benchmarks/index.py`):",
        "",
    ]
    lines += [
        f"| model | {' | '.join('by default' if store == 'none' else f'`--store {store}`' for store in stores)} |",
        "|" + "---|" * (1 + len(stores)),
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        ratios = {row["store"]: row["ratio"] for row in rows if row["model"] == model}
        lines.append(f"| {model} | {' | '.join(f'{significant(ratios[store])}×' for store in stores)} |")
    counts = {row["model"]: row["passages"] for row in rows if row["store"] == "none"}
    lines += [
        "",
        f"Measured on {' and '.join(map(str, counts.values()))} passages of 58 to 237 words (with stored contributions "
        f"on one of {rows[-1]['words']}) and one thread of an {machine['cpu']}, torch {machine['torch']}, "
        f"{machine['date']}.",
    ]
    return "\n".join(lines)


def divisions() -> str:
    results = json.loads((HERE / "results/divisions.json").read_text())
    machine, models = results["machine"], results["models"]
    counts = list(next(iter(models.values()))[0]["times_encode"])
    lines = [f"| model | path, layer | tokens | {' | '.join(f'{count} divisions' for count in counts)} |"]
    lines.append("|" + "---|" * (3 + len(counts)))
    for model, rows in models.items():
        for row in rows:
            times = [f"{significant(row['times_encode'][count])}×" for count in counts]
            lines.append(f"| {model} | {row['path']}, {row['layer']} | {row['tokens']} | {' | '.join(times)} |")
    lines += ["", f"One core of an {machine['cpu']}, torch {machine['torch']}, {machine['date']}."]
    return "\n".join(lines)


OTHER_WAYS = {
    ("tokens", "delete"): "tokens deleted",
    ("words", "mask"): "words masked",
    ("words", "pad"): "words padded over",
}
LINKS: dict[str, str | None] = {"top-1": None, "by effect": "top1_by_effect", "together": "together_top1"}
# Tests that were also run on short texts alone: why, and what is shown of them.
SHORT: dict[str, tuple[str, dict[str, str | None]]] = {
    "coalitions": ("where every subset can be asked", {"coalitions": None, "by cosine": "spearman_by_cosine"}),
    "alignment": ("which have fewer partners to choose from", LINKS),
}


# What each model is explained by, and what its token vectors are compared at.
DEFAULTS = {
    "all-MiniLM-L6-v2": ("secant 0, divisions=4", "token cosine 6"),
    "all-mpnet-base-v2": ("secant 8, divisions=4", "token cosine 12"),
    "granite-embedding-30m-english": ("secant 0, special=base, divisions=4", "token cosine 6"),
    "nomic-embed-text-v1.5": ("relay 0, special=base, divisions=8", "token cosine 12"),
    "nomic-embed-text-v1.5, by a secant": ("secant 0, special=base, divisions=4", "token cosine 12"),
}


def defaults() -> str:
    """The defaults beside what anybody can compute: how well they predict the model, and whose links they find."""
    usual = {
        (each["settings"]["model"], each["settings"]["subject"], each["test"]): each
        for each in json.loads((HERE / "results/truth.json").read_text())
        if each["settings"]["split"] == "test"
        and "max_words" not in each["settings"]
        and (each["settings"].get("units", "words"), each["settings"].get("removal", "delete")) == ("words", "delete")
    }

    def cell(name: str, subject: str, test: str, column: str | None = None) -> str:
        return _cell(usual.get((name.split(",")[0], subject, test)), column)

    beside = {"leave one out": "leave one out", "counting words": "word count"}
    lines = ["Coalitions: how well the sum of what is left ranks the model's scores", ""]
    lines += [f"| | by default | token cosine | {' | '.join(beside)} |", "|" + "---|" * (3 + len(beside))]
    for name, (own, cosine) in DEFAULTS.items():
        cells = [cell(name, subject, "coalitions") for subject in (own, cosine, *beside.values())]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "Word links: how often a word's strongest partner is one that people linked it with", ""]
    lines.append(f"| | {' | '.join(f'{column}, by default | token cosine' for column in LINKS)} |")
    lines.append("|" + "---|" * (1 + 2 * len(LINKS)))
    for name, subjects in DEFAULTS.items():
        cells = [cell(name, subject, "alignment", column) for column in LINKS.values() for subject in subjects]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def truth() -> str:
    """What predicts the model, and what points where people point; then the further tests, for some methods."""
    models: dict[str, dict[str, dict[tuple[str, str], dict[str, Any]]]] = {}
    short: list[dict[str, Any]] = []
    other: dict[tuple[str, str], dict[tuple[str, str], dict[str, Any]]] = {}
    for each in json.loads((HERE / "results/truth.json").read_text()):
        settings = each["settings"]
        if settings["split"] != "test" or each["failure"]:
            continue
        way = settings.get("units", "words"), settings.get("removal", "delete")
        if way in OTHER_WAYS:
            other.setdefault((settings["model"], settings["subject"]), {})[way] = each
        elif "max_words" in settings:
            short.append(each)
        else:
            methods = models.setdefault(settings["model"], {})
            methods.setdefault(settings["subject"], {})[each["test"], settings["data"]] = each
    lines = []
    for model, methods in models.items():
        lines += [f"**{model}**, held-out pairs", ""]
        lines += [f"| method | coalitions | by cosine | {' | '.join(LINKS)} | pairs |", "|" + "---|" * (4 + len(LINKS))]
        found = {name: {test: each for (test, _), each in of.items()} for name, of in methods.items()}
        for name in sorted(found, key=lambda name: -_headline(found[name].get("coalitions"))):
            removed, linked = found[name].get("coalitions"), found[name].get("alignment")
            cells = [
                _cell(removed),
                _cell(removed, "spearman_by_cosine"),
                *(_cell(linked, name) for name in LINKS.values()),
            ]
            pairs = dict.fromkeys(str(each["counts"]["pairs"]) for each in (removed, linked) if each)
            if pairs:
                lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(pairs)} |")
        lines.append("")
    for test, (reason, columns) in SHORT.items():
        few = [each for each in short if each["test"] == test]
        if not few:
            continue
        lines += [f"Pairs of texts of at most {few[0]['settings']['max_words']} words, {reason}", ""]
        lines += [f"| model | method | {' | '.join(columns)} | pairs |", "|" + "---|" * (len(columns) + 3)]
        for each in sorted(few, key=lambda each: (each["settings"]["model"], -_headline(each))):
            cells = [each["settings"]["model"], each["settings"]["subject"]]
            cells += [_cell(each, name) for name in columns.values()]
            lines.append("| " + " | ".join([*cells, str(each["counts"]["pairs"])]) + " |")
        lines.append("")
    if other:
        lines += ["Coalitions that are made in other ways", ""]
        lines += [
            f"| model | method | {' | '.join(OTHER_WAYS.values())} | pairs |",
            "|" + "---|" * (3 + len(OTHER_WAYS)),
        ]
        for (model, subject), of in sorted(other.items()):
            pairs = dict.fromkeys(str(each["counts"]["pairs"]) for each in of.values())
            cells = [model, subject, *(_cell(of.get(way)) for way in OTHER_WAYS), ", ".join(pairs)]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["| model | method | test | value | by itself | pairs |", "|" + "---|" * 6]
    for model, methods in models.items():
        for test, meaning in FURTHER.items():
            for name, of in methods.items():
                for (kind, data), each in of.items():
                    if kind == test:
                        alone = _cell(each, "mrr_alone") if test == "answers" else ""
                        where = f" ({Path(data).stem})" if test == "chunks" else ""
                        cells = [model, name, meaning + where, _cell(each), alone, str(each["counts"]["pairs"])]
                        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines).rstrip()


def _headline(result: dict[str, Any] | None) -> float:
    value = None if result is None else result["estimates"][result["headline"]]["value"]
    return -9.0 if value is None else float(value)


def _cell(result: dict[str, Any] | None, name: str | None = None) -> str:
    if result is None:
        return ""
    found = result["estimates"].get(name or result["headline"])
    if found is None or found["value"] is None:
        return ""
    return f"{found['value']:.3f} ({found['low']:.2f}–{found['high']:.2f})"


def negation() -> str:
    results = json.loads((HERE / "results/negation.json").read_text())
    lines = ["| model | data | change | pairs | score | one other word less |", "|" + "---|" * 6]
    shown = set()
    for each in results:
        settings = each["settings"]
        for kind in ("negation", "antonym", "same"):
            score = each["estimates"][f"score_{kind}"]
            key = (settings["model"], settings["data"], kind)
            if score["pairs"] and key not in shown:  # the same of every method
                shown.add(key)
                cells = [*key, str(score["pairs"]), _cell(each, f"score_{kind}"), _cell(each, f"control_{kind}")]
                lines.append("| " + " | ".join(cells) + " |")
    kinds = ("negation", "antonym", "same")
    lines += ["", "How often the changed word is the one that lacks most, for each kind of change:", ""]
    lines += [f"| model | method | {' | '.join(kinds)} | its part of what is missing |", "|" + "---|" * 6]
    for each in results:
        cells = [each["settings"]["model"], each["settings"]["subject"]]
        cells += [_cell(each, name) for name in (*(f"seen_{kind}" for kind in kinds), "loss_share")]
        lines.append("| " + " | ".join(cells) + " |")
    chance = [results[0]["estimates"][f"seen_by_chance_{kind}"]["value"] for kind in kinds]
    lines.append(f"| | by chance | {' | '.join(f'{value:.3f}' for value in chance)} | |")
    return "\n".join(lines)


def _span(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _bytes(count: float) -> str:
    return f"{count / 1e12:.1f} TB" if count >= 1e12 else f"{count / 1e9:.1f} GB"


def studies() -> str:
    """Return what the paper says beside what the committed results of each model say."""
    columns: dict[str, dict[str, str]] = {}
    for folder in STUDIED:
        for claim in CLAIMS:
            path = STUDIES / folder / f"{claim.study}.json"
            if not path.is_file():
                continue
            content = json.loads(path.read_text(encoding="utf-8"))
            for model in (each["name"] for each in content["inputs"]["models"]):
                numbers = _with_pairs(content)
                found = claim.read(numbers, model)
                if found is not None:
                    ours, agrees, pairs = found
                    cell = f"{ours}{'' if agrees else ' (differs)'}; {pairs:,} pairs"
                    columns.setdefault(model, {})[claim.text] = cell
    lines = [f"| the paper says | {' | '.join(columns)} |", "|" + "---|" * (1 + len(columns))]
    for claim in CLAIMS:
        cells = [column.get(claim.text, "not run") for column in columns.values()]
        lines.append(f"| {claim.text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_pairs(content: dict[str, Any]) -> dict[str, Any]:
    """Say of each number over how many pairs it is, where a result of an earlier version says it only once."""
    numbers: dict[str, Any] = content["numbers"]
    for name, measured in numbers.items():
        if not isinstance(measured, dict):
            continue
        layers = measured.get("layers", measured) if content["study"] != "pos" else {}
        everywhere = measured.get("pairs", content["inputs"].get("pairs"))
        if content["study"] == "accuracy" and "num_layers" not in measured:
            measured["num_layers"] = max(map(int, layers))  # all of them were studied
        for layer in [*layers.values(), *([measured] if content["study"] == "pos" else [])]:
            if isinstance(layer, dict):
                layer.setdefault("pairs", everywhere)
        numbers[name] = measured
    return numbers


def fill(text: str, name: str, table: str) -> str:
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"no marks for the table {name!r}")
    return marks.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def main() -> None:
    docs = HERE.parent / "docs"
    places = (
        (README, "peers", peers),
        (docs / "method.md", "entries", entries),
        (docs / "method.md", "compare", compare),
        (docs / "method.md", "exactness", exactness),
        (docs / "method.md", "floor", floor),
        (docs / "method.md", "deep", deep),
        (docs / "method.md", "divisions", divisions),
        (docs / "training.md", "table1", table1),
        (docs / "training.md", "training", shift),
        (docs / "many.md", "many", many),
        (docs / "many.md", "index", index),
        (docs / "truth.md", "defaults", defaults),
        (docs / "truth.md", "truth", truth),
        (docs / "truth.md", "negation", negation),
        (docs / "studies.md", "studies", studies),
    )
    for path, name, make in places:
        if make not in (studies, defaults) and not (HERE / f"results/{name}.json").is_file():  # not measured yet
            continue
        before = path.read_text(encoding="utf-8")
        after = fill(before, name, make())
        if "--check" in sys.argv and before != after:
            sys.exit(f"{path.name} does not show the committed results: run python benchmarks/tables.py")
        path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
