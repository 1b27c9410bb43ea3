"""Table 1: how well models rank pairs as people do, by cosine and by dot product."""

from __future__ import annotations

import time

from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result
from whymatch.training.sts import evaluate_sts

# Spearman's correlation, times 100, by cosine and by dot product: the paper's Table 1.
PAPER = {
    "S-MPNet, adjusted": (85.9, 82.6),
    "S-MPNet, plain": (87.6, 83.9),
    "S-distilRoBERTa, adjusted": (85.7, 80.7),
    "S-distilRoBERTa, plain": (86.3, 77.4),
    "MPNet, adjusted": (85.1, 80.4),
    "MPNet, plain": (86.3, 84.2),
    "distilRoBERTa, adjusted": (80.4, 73.4),
    "distilRoBERTa, plain": (84.6, 76.2),
    "RoBERTa, adjusted": (77.7, 68.8),
    "RoBERTa, plain": (86.1, 68.8),
}


DEPENDS = ("data",)
TRIED = 32  # texts that are embedded for an estimate of the time


def foresee(experiment: Experiment) -> dict[str, float]:
    """Estimate how many seconds each model takes, from some texts of all lengths."""
    texts = sorted({text for pair in experiment.data.texts for text in pair}, key=len)
    tried = texts[:: -(-len(texts) // TRIED)]
    seconds = {}
    for subject in experiment.subjects:
        started = time.perf_counter()
        subject.model.encode(tried)
        each = (time.perf_counter() - started) / sum(map(len, tried))
        seconds[f"{subject.label}, performance"] = each * sum(map(len, texts))
    return seconds


def run(experiment: Experiment) -> Result:
    ours = {subject.label: evaluate_sts(subject.model, experiment.data) for subject in experiment.subjects}
    rows = [
        *((name, scores["cosine"], scores["dot"], "ours") for name, scores in ours.items()),
        *((name, cosine, dot, "the paper's") for name, (cosine, dot) in PAPER.items()),
    ]
    figure, (axes,) = charts.panels(1, 6.4, 0.6 + 0.34 * len(rows))
    for place, (_, cosine, dot, whose) in enumerate(rows):
        axes.plot([cosine, dot], [place, place], color="0.8", zorder=0)
        for value, marker, colour in ((cosine, "o", "#d95f02"), (dot, "s", "#2166ac")):
            axes.scatter(
                [value], [place], marker=marker, edgecolors=colour, facecolors=colour if whose == "ours" else "none"
            )
    axes.set_yticks(range(len(rows)), [f"{name} ({whose})" for name, _, _, whose in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("Spearman × 100")
    for marker, colour, label in (("o", "#d95f02", "cosine"), ("s", "#2166ac", "dot product")):
        axes.scatter([], [], marker=marker, color=colour, label=label)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    kinds = {subject.label: "adjusted" if subject.adjusted else "as it is" for subject in experiment.subjects}
    table = [["model", "", "whose", "cosine", "dot product"]]
    table += [
        [name, kinds[name], "ours", f"{scores['cosine']:.1f}", f"{scores['dot']:.1f}"] for name, scores in ours.items()
    ]
    table += [[*name.split(", "), "the paper's", f"{cosine}", f"{dot}"] for name, (cosine, dot) in PAPER.items()]
    costs = {
        base: [
            plain - shifted for plain, shifted in zip(PAPER[f"{base}, plain"], PAPER[f"{base}, adjusted"], strict=True)
        ]
        for base in dict.fromkeys(name.split(", ")[0] for name in PAPER)
    }
    paper = "; ".join(f"{base} {cosine:.1f} / {dot:.1f}" for base, (cosine, dot) in costs.items())
    first, *others = experiment.subjects
    compared = [
        Comparison(
            f"{other.label} below {first.label}, by cosine / dot",
            " / ".join(f"{ours[first.label][by] - ours[other.label][by]:.1f}" for by in ("cosine", "dot")),
            f"adjusted below plain: {paper}",
        )
        for other in others
    ]
    return Result(
        title="Predictive performance (Table 1)",
        notes=[
            f"Spearman's correlation with people's scores on {len(experiment.data):,} pairs of "
            f"{experiment.data.source}. The paper's models were trained on STS-B: a model as published compares with "
            "none of its rows, and one that is trained as they were, from the same weights, with its own."
        ],
        compared=compared,
        tables={"Spearman's correlation, times 100": table},
        numbers={"ours": ours, "paper": PAPER},
        figures={"Spearman's correlation by cosine and by dot product": figure},
    )
