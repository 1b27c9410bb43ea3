"""Figure 9: one pair, explained for every model."""

from __future__ import annotations

from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result

PAIRS = (
    ("The coffee is not good.", "This is bad coffee."),
    ("A dog is chasing a cat.", "A cat is chasing a dog."),
)

DEPENDS = ("layer",)


def foresee(experiment: Experiment) -> dict[str, float]:
    """Estimate how many seconds each model takes."""
    texts = [text for pair in PAIRS for text in pair]
    return {
        f"{subject.label}, models": experiment.estimate(subject, experiment.explainer_at(subject, layer), texts)
        for subject in experiment.subjects
        for layer in [experiment.inner_layer(subject)]
    }


def run(experiment: Experiment) -> Result:
    figures, numbers, compared = {}, {}, []
    for pair in PAIRS:
        name = f"“{pair[0]}” and “{pair[1]}”"
        whys = {
            subject.label: next(experiment.explanations(subject, experiment.inner_layer(subject), [pair])).words()
            for subject in experiment.subjects
        }
        titles = [f"{label}, layer {why.layer}: {why.score:.2f} ({why.similarity})" for label, why in whys.items()]
        figures[name] = charts.matrices(list(whys.values()), titles)
        numbers[name] = {
            label: {
                "score": why.score,
                "words_a": why.tokens_a,
                "words_b": why.tokens_b,
                "matrix": why.matrix.round(6).tolist(),
            }
            for label, why in whys.items()
        }
        scores = ", ".join(f"{label} {why.score:.2f}" for label, why in whys.items())
        compared.append(Comparison(f"scores of {name}", scores, "–"))
    return Result(
        title="One pair for every model (Figure 9)",
        notes=[
            "Models that agree on a score may owe it to different words. Dot products have no upper bound. "
            "All panels of a figure have one colour scale; numbers are hundredths."
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )
