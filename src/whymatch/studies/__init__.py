"""The paper's studies, with our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whymatch.studies.experiment import Experiment, Result

# In the order of the paper and of the report.
NAMES = (
    *("performance", "accuracy", "distribution", "cumulative", "pos", "layers", "models", "failures"),
    *("agreement", "roles", "negation", "lexical"),  # what its authors asked next
)


def study(name: str) -> Any:
    """Import the module of a study.

    It has a function ``run``, and ``DEPENDS``, which names what the result depends on besides the models. It may have a
    function ``foresee``, which estimates its time; others take as long as the texts that they depend on.
    """
    if name not in NAMES:
        raise ValueError(f"there is no study {name!r}; choose one of {', '.join(NAMES)}, or all")
    return import_module(f"whymatch.studies.{name}")


def check(names: Iterable[str], experiment: Experiment) -> None:
    """Raise an error if one of the studies cannot be run: now rather than after an hour."""
    for name in names:
        reason = why_skipped(name, experiment)
        if reason is not None:
            raise ValueError(f"the study of {name} cannot be run: {reason}")
    if any("tagger" in study(name).DEPENDS for name in names):
        _ = experiment.tagger
    if "failures" in names:
        study("failures").check(experiment)


def why_skipped(name: str, experiment: Experiment) -> str | None:
    """Return the reason why a study has to be left out of all studies: something that it needs is not there."""
    if name == "negation" and not experiment.changes:
        return "it needs texts and their negations: give --changes FILE.tsv"
    if name == "agreement" and all(subject.adjusted for subject in experiment.subjects):
        return "it needs a model that is not adjusted: give another --model"
    if name == "roles":
        try:
            _ = experiment.parser
        except ModuleNotFoundError as error:
            return str(error)
    return None


def foresee(names: Iterable[str], experiment: Experiment) -> dict[str, float]:
    """Estimate how many seconds the studies will take, by model and layer; those that are finished take none."""
    waiting = [study(name) for name in names if not experiment.is_finished(name, study(name))]
    own = [each for each in waiting if hasattr(each, "foresee")]
    seconds = experiment.foresee({what for each in waiting if each not in own for what in each.DEPENDS})
    for each in own:
        seconds |= each.foresee(experiment)
    return seconds


def run(name: str, experiment: Experiment) -> Result:
    """Run a study, or read its result if it has been run with the same inputs before."""
    return experiment.run_once(name, study(name))
