"""Is the run still healthy? What the steps show, against limits that warn or end it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.train.callbacks import StepReport

_LEVEL_STEPS = 3  # a level is the mean of so many steps: one small batch says little
_LOOP = 3  # the same call so often in an episode is a loop


@dataclass(frozen=True)
class Measure:
    """`metric` of a step's record. `kind` says what a limit is compared with: the metric itself, or the
    metric as a multiple of the lowest (`rise`) or the highest (`fall`) level so far. Below `least` a highest
    level is too low to fall from."""

    metric: str
    kind: str  # above, rise, fall
    sentence: str
    least: float = 0.0


# By the names of the limits in the configuration (`config.watching.HealthLimits`).
MEASURES: dict[str, Measure] = {
    "approx_kl": Measure("approx_kl", "above", "one update moved the policy far from what sampled"),
    "kl": Measure("kl", "above", "the policy is far from the reference"),
    "clip_fraction": Measure("clip_fraction", "above", "the clip takes away much of the gradient"),
    "logprob_drift": Measure("logprob_drift_max", "above", "sampler and trainer disagree on a token"),
    "entropy_rise": Measure("entropy", "rise", "the policy dissolves into noise"),
    "entropy_fall": Measure("entropy", "fall", "the policy no longer explores", least=1e-3),
    "grad_norm_rise": Measure("grad_norm", "rise", "gradients explode"),
    "uniform_share": Measure("uniform_share", "above", "attempts at a task no longer differ"),
    "success_fall": Measure("success_rate", "fall", "success is lost", least=0.1),
    "calls_rise": Measure("calls_mean", "rise", "calls are spammed"),
    "calls_fall": Measure("calls_mean", "fall", "tools are abandoned", least=0.2),
    "loop_share": Measure("loop_share", "above", "the same call is repeated"),
    "tokens_rise": Measure("tokens_mean", "rise", "episodes grow long"),
    "tokens_fall": Measure("tokens_mean", "fall", "episodes grow short", least=1.0),
}


@dataclass(frozen=True, kw_only=True)
class HealthSettings:
    """Limits by the names of MEASURES. A run ends after `patience` steps in a row past one of `stop`."""

    warn: dict[str, float]
    stop: dict[str, float]
    patience: int = 3


class PPOHealthCallback:
    """Adds measures of health to every record, warns through `note`, and says when to stop.

    What it remembers is a function of the records: a resumed run hands them to `replay`.
    """

    def __init__(self, settings: HealthSettings, *, note: Callable[[str], None] = lambda _: None) -> None:
        self._settings, self._note = settings, note
        self._history: dict[str, list[float]] = {}
        self._streak: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._reason: str | None = None
        self.is_well = True  # no limit of `stop` was passed at the last step

    def on_step(self, report: StepReport) -> None:
        report.metrics.update(episode_measures(report.trajectories))
        self._assess(report.metrics, self._note)

    def should_stop(self) -> str | None:
        return self._reason

    def replay(self, records: Sequence[JsonObject]) -> None:
        """Take in the records of the steps before a resumed run."""
        for record in records:
            self._assess(record, lambda _: None)

    def _assess(self, record: JsonObject, note: Callable[[str], None]) -> None:
        passed: set[str] = set()
        for name, measure in MEASURES.items():
            value = _value(record, measure.metric)
            if value is None:
                continue
            shown = self._compared(measure, value)
            if shown is None:
                continue
            if _is_past(measure, shown, self._settings.stop.get(name)):
                passed.add(name)
            if not _is_past(measure, shown, self._settings.warn.get(name)):
                self._warned.discard(name)
            elif name not in self._warned:
                self._warned.add(name)
                note(f"health, step {record['step']}: {_finding(name, value, shown, self._settings.warn)}")
        self._streak = Counter({name: self._streak[name] + 1 for name in passed})
        self.is_well = not passed
        for name, steps in self._streak.items():
            if steps >= self._settings.patience:
                measure = MEASURES[name]
                value = _value(record, measure.metric) or 0.0
                shown = self._compared(measure, value) or 0.0
                finding = _finding(name, value, shown, self._settings.stop)
                self._reason = f"health: {finding}, {steps} steps in a row"
                break
        else:
            self._reason = None
        for metric in {measure.metric for measure in MEASURES.values()}:
            if (value := _value(record, metric)) is not None:
                self._history.setdefault(metric, []).append(value)

    def _compared(self, measure: Measure, value: float) -> float | None:
        """The number that a limit is for; None where there is nothing to compare with."""
        if measure.kind == "above":
            return value
        levels = _levels(self._history.get(measure.metric, []))
        if not levels:
            return None
        level = max(levels) if measure.kind == "fall" else min(levels)
        return value / level if level > measure.least else None


def _value(record: JsonObject, metric: str) -> float | None:
    """Of success, that with unscored episodes counted as failed, where the record has it: a policy whose
    failures drop out must not look well."""
    of_all = record.get(f"{metric}_all")
    return record.get(metric) if of_all is None else of_all


def episode_measures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Calls, lengths and reward components of a step's scored episodes, each with its correlation to success
    (None where one of both is constant)."""
    scored = [t for t in trajectories if t.reward is not None]
    if not scored:
        return {}
    calls = [sum(len(turn.tool_calls) for turn in t.turns) for t in scored]
    measures: dict[str, Any] = {
        "calls_mean": fmean(calls),
        "calls_max": max(calls),
        "silent_share": fmean(n == 0 for n in calls),
        "loop_share": fmean(_is_looping(t) for t in scored),
        "tokens_mean": fmean(sum(len(turn.completion.token_ids) for turn in t.turns) for t in scored),
    }
    for name in sorted({term.name for t in scored for term in t.reward_terms}):
        pairs = [(value, float(t.is_success or False)) for t in scored if (value := t.term(name)) is not None]
        if pairs:
            measures[f"reward_{name}"] = fmean(value for value, _ in pairs)
            measures[f"corr_{name}"] = _correlation(pairs)
    return measures


def _is_looping(trajectory: Trajectory) -> bool:
    made = Counter(
        (call.server, call.tool, json.dumps(call.arguments, sort_keys=True))
        for turn in trajectory.turns
        for call in turn.tool_calls
    )
    return max(made.values(), default=0) >= _LOOP


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    try:
        return correlation([a for a, _ in pairs], [b for _, b in pairs])
    except StatisticsError:  # fewer than two, or a constant
        return None


def _levels(values: Sequence[float]) -> list[float]:
    """At each step the mean of the last `_LEVEL_STEPS` values, or of all while there are fewer."""
    return [fmean(values[max(0, i + 1 - _LEVEL_STEPS) : i + 1]) for i in range(len(values))]


def _is_past(measure: Measure, shown: float, limit: float | None) -> bool:
    if limit is None:
        return False
    if not math.isfinite(shown):
        return True
    return shown < limit if measure.kind == "fall" else shown > limit


def _finding(name: str, value: float, shown: float, limits: dict[str, float]) -> str:
    """`tools are abandoned: calls_mean is 0.03, 0.02 of its highest level (limit 0.1: calls_fall)`."""
    measure = MEASURES[name]
    against = {
        "above": "",
        "rise": f", {shown:.2g} times its lowest level",
        "fall": f", {shown:.2g} of its highest level",
    }[measure.kind]
    limit = f"limit {limits[name]:g}: {name}"
    return f"{measure.sentence}: {measure.metric} is {value:.3g}{against} ({limit})"
