"""The model before training, with and without shots: a gain is told against the better of the two.

What is gained over a model that only loses by its form would be no gain over one that was shown the form.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcpagent.core.records import JsonObject
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.summary import UNTRAINED, EvalResult

BASELINE_SHOTS = {UNTRAINED: 0, f"{UNTRAINED}_2_shots": 2}  # by the stem of the evaluation


def better_baseline(evaluations: Mapping[str, EvalResult], suffix: str = "") -> str | None:
    """Return the name of the baseline with the higher task success, of those sampled as `suffix` says; None
    unless all were measured."""
    names = [name + suffix for name in BASELINE_SHOTS]
    if not evaluations.keys() >= set(names):
        return None
    return max(names, key=lambda name: evaluations[name].metrics["task_success"].value or 0.0)


def gain(
    evaluations: Mapping[str, EvalResult], after: str, suffix: str = ""
) -> tuple[str, Comparison] | None:
    """Return the better baseline and the comparison of the evaluation `after` with it, paired by task; None
    if one was not measured."""
    name, trained = better_baseline(evaluations, suffix), evaluations.get(after + suffix)
    return None if name is None or trained is None else (name, compare(evaluations[name], trained))


def gains(evaluations: Mapping[str, EvalResult], after: str, *, suffixes: Mapping[str, str]) -> JsonObject:
    """Return each gain of `after` with its baseline as JSON, by the names of the `suffixes`."""
    made = {how: gain(evaluations, after, suffix) for how, suffix in suffixes.items()}
    return {
        how: {"over": one[0], **one[1].difference.model_dump(mode="json")} for how, one in made.items() if one
    }
