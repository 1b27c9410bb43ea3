"""Figure 4: one pair, explained at every layer."""

from __future__ import annotations

from whymatch.studies import charts
from whymatch.studies.setting import Compared, Result, Setting

# Written for this: a word that turns the meaning of a sentence.
PAIR = ("The band played well.", "The musicians performed poorly.")


DEPENDS = ()


def run(setting: Setting) -> Result:
    figures, numbers, compared = {}, {}, []
    for subject in setting.subjects:
        found = [next(iter(setting.explanations(subject, i, [PAIR]))).words() for i in range(subject.num_layers + 1)]
        titles = [f"layer {i}: {why.score:.2f}, error {why.error:.0e}" for i, why in enumerate(found)]
        figures[f"{subject.label}: “{PAIR[0]}” and “{PAIR[1]}”"] = charts.matrices(found, titles)
        poorly = [float(why.matrix[:, why.tokens_b.index("poorly")].sum()) for why in found]
        numbers[subject.label] = {
            "score": found[0].score,
            "words_a": found[0].tokens_a,
            "words_b": found[0].tokens_b,
            "matrices": [why.matrix.round(6).tolist() for why in found],
            "poorly_in_total": poorly,
        }
        said = ", ".join(f"{value:+.2f}" for value in poorly)
        what = f"{subject.label}: “poorly” in total, layer 0 to {subject.num_layers}"
        compared.append(
            Compared(what, said, "for another pair: negative at layers 7 and 11 of 12, absent at the output")
        )
    return Result(
        title="One pair at every layer (Figure 4)",
        notes=[
            "The same score, taken apart at different depths. Words are sums of their tokens; each panel's colours "
            "have a scale of their own, and its numbers are hundredths."
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )
