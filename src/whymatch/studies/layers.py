"""Figure 4: one pair, explained at every layer."""

from __future__ import annotations

from whymatch import Explainer, Explanation
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, Subject

# One word reverses the meaning of the second sentence.
PAIR = ("The band played well.", "The musicians performed poorly.")

PAPER = "for another pair, adjusted S-MPNet: negative at layers 7 and 11 of 12, absent at the output"
DEPENDS = ("every layer",)


def ways(subject: Subject, layer: int) -> tuple[Explainer, Explainer]:
    """Return explainers at a layer: along the straight path, and along its pieces where it is steep."""
    return subject.explainer(layer), subject.explainer(layer, in_pieces=True)


def foresee(experiment: Experiment) -> dict[str, float]:
    """Estimate how many seconds each model takes, by one of the texts at every layer."""
    seconds = {}
    for subject in experiment.subjects:
        total = 0.0
        for layer in experiment.every_layer(subject):
            for explainer in ways(subject, layer):
                total += experiment.estimate(subject, explainer, PAIR)
                if not experiment.knows_rough(subject, explainer, PAIR):
                    break
        seconds[f"{subject.label}, layers"] = total
    return seconds


def explain(experiment: Experiment, subject: Subject, layer: int) -> Explanation | None:
    """Explain the pair at a layer; None where its path jumps, and not even pieces of it can be followed."""
    for explainer in ways(subject, layer):
        why = next(experiment.explanations(subject, layer, [PAIR], explainer), None)
        if why is not None:
            return why
    return None


def run(experiment: Experiment) -> Result:
    figures, numbers, compared = {}, {}, []
    explained = {
        subject.label: [
            why.words()
            for layer in experiment.every_layer(subject)
            if (why := explain(experiment, subject, layer)) is not None
        ]
        for subject in experiment.subjects
    }
    for subject in experiment.subjects:
        whys = explained[subject.label]
        layers = [why.layer for why in whys]
        if not layers:
            raise ValueError(f"{subject.label}: {PAIR[0]!r} and {PAIR[1]!r} converge at none of these layers")
        titles = [
            f"layer {why.layer}: {why.score:.2f}, error {why.error:.0e}{', in pieces' * (why.rule == 'pieces')}"
            for why in whys
        ]
        figures[f"{subject.label}: “{PAIR[0]}” and “{PAIR[1]}”"] = charts.matrices(
            whys, titles, beside=[why for others in explained.values() for why in others]
        )
        column = whys[0].tokens_b.index("poorly")
        poorly = [float(why.matrix[:, column].sum()) for why in whys]
        lowest = [
            min((float(value), word) for value, word in zip(why.matrix[:, column], why.tokens_a, strict=True))
            for why in whys
        ]
        numbers[subject.label] = {
            "layers": layers,
            "score": whys[0].score,
            "words_a": whys[0].tokens_a,
            "words_b": whys[0].tokens_b,
            "rules": [why.rule for why in whys],
            "nodes": [why.nodes for why in whys],
            "matrices": [why.matrix.round(6).tolist() for why in whys],
            "poorly_in_total": poorly,
            "poorly_at_its_lowest": lowest,
        }
        what = f"{subject.label}: “poorly” in total, layers {', '.join(map(str, layers))} of {subject.num_layers}"
        ours = ", ".join(f"{value:+.2f}" for value in poorly)
        compared.append(Comparison(what, ours, PAPER))
        ours = ", ".join(f"{word} {value:+.2f}" for value, word in lowest)
        compared.append(Comparison(f"{subject.label}: “poorly” at its lowest, by layer", ours, "–"))
    return Result(
        title="One pair at every layer (Figure 4)",
        notes=[
            "The same score, decomposed at different depths. A word is the sum of its tokens; all panels have one "
            "colour scale, also those of other models, and their numbers are hundredths. Where the straight path is "
            "steep, it is divided into pieces with nodes of their own (“in pieces”); a layer where it jumps has no "
            "panel."
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )
