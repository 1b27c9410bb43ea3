"""Figure 9: one pair, explained for every model."""

from __future__ import annotations

from whymatch.studies import charts
from whymatch.studies.setting import Compared, Result, Setting

PAIRS = (
    ("The coffee is not good.", "This is bad coffee."),
    ("A dog is chasing a cat.", "A cat is chasing a dog."),
)


DEPENDS = ("layer",)


def run(setting: Setting) -> Result:
    figures, numbers, compared = {}, {}, []
    for pair in PAIRS:
        name = f"“{pair[0]}” and “{pair[1]}”"
        found = {
            subject.label: next(iter(setting.explanations(subject, setting.inner_layer(subject), [pair]))).words()
            for subject in setting.subjects
        }
        titles = [f"{label}, layer {why.layer}: {why.score:.2f} ({why.similarity})" for label, why in found.items()]
        figures[name] = charts.matrices(list(found.values()), titles)
        numbers[name] = {
            label: {
                "score": why.score,
                "words_a": why.tokens_a,
                "words_b": why.tokens_b,
                "matrix": why.matrix.round(6).tolist(),
            }
            for label, why in found.items()
        }
        scores = ", ".join(f"{label} {why.score:.2f}" for label, why in found.items())
        compared.append(Compared(f"scores of {name}", scores, "–"))
    return Result(
        title="One pair for every model (Figure 9)",
        notes=[
            "Models that agree on a score may have come to it by different words. Dot products have no upper bound. "
            "Numbers are hundredths."
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )
