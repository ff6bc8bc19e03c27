"""Measure the health of a run by its steps, and end it past a limit."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean
from typing import Any, Literal, Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that is done: its record as it stands in metrics.jsonl, and its episodes, which were sampled
    with the weights of the step before."""

    step: int
    metrics: JsonObject
    trajectories: Sequence[Trajectory]


class Callback(Protocol):
    """Both are called once a step, in this order, before the step's checkpoint is written."""

    def on_step(self, report: StepReport) -> None:
        """Look at a step; what is added to `report.metrics` joins the record."""
        ...

    def should_stop(self) -> str | None:
        """Return why the run is to end now; None goes on."""
        ...


_LEVEL_STEPS = 3  # a level is the mean of at least so many steps
_ENOUGH = 64  # episodes: what fewer of them say is left to chance
_MOST_STEPS = 16  # that are taken together to have enough
_LOOP = 3  # the same call so often in an episode is a loop


@dataclass(frozen=True)
class Measure:
    """The value that a limit of `health` is compared with: `metric` of a step's record itself (`above`), or
    the metric as a multiple of the lowest (`rise`) or the highest (`fall`) level so far. A highest level up
    to `least` is too low to fall from. What is `of_episodes` is judged by enough of them, over several steps
    if one has too few. `limit` is the name of the limit, if it is not the measure's own."""

    metric: str
    kind: Literal["above", "rise", "fall"]
    sentence: str
    least: float = 0.0
    of_episodes: bool = False
    limit: str | None = None


# By the names of the limits in the configuration (`config.sections.HealthConfig`).
MEASURES: dict[str, Measure] = {
    "approx_kl": Measure("approx_kl", "above", "one update moved the policy far from what sampled"),
    "kl": Measure("kl", "above", "the policy is far from the reference"),
    "entropy_rise": Measure("entropy", "rise", "the policy dissolves into noise"),
    "success_fall": Measure("success_rate", "fall", "success is lost", least=0.1, of_episodes=True),
    "calls_fall": Measure("calls_mean", "fall", "tools are abandoned", least=0.2, of_episodes=True),
    "loop_share": Measure("loop_share", "above", "the same call is repeated", of_episodes=True),
    "calls_begun": Measure(
        "calls_begun", "fall", "the calls of the demonstrations are unlearned", least=0.2, limit="calls_fall"
    ),
}
PATIENCE = 3  # steps in a row past a limit that end a run
_Seen = tuple[float, int | None]  # a metric at one step, and the episodes that it is a mean over


class HealthMonitor:
    """Watches the records of a run, and ends it after `PATIENCE` steps in a row past one of
    `limits` (by their names in MEASURES). `note` is told when a limit is first passed.

    What it remembers is a function of the records: a resumed run hands them to `replay`.
    """

    def __init__(self, limits: Mapping[str, float], *, note: Callable[[str], None] = lambda _: None) -> None:
        self._limits, self._note = limits, note
        self._history: dict[str, list[_Seen]] = {}
        self._streak: Counter[str] = Counter()
        self._idle = 0  # steps in a row that trained nothing
        self._reason: str | None = None
        self.is_well = True  # no limit was passed at the last step

    def on_step(self, report: StepReport) -> None:
        """Compare the metrics of the step with the limits."""
        self._assess(report.metrics, self._note)

    def should_stop(self) -> str | None:
        """Return why the run should end; None while it is healthy."""
        return self._reason

    def replay(self, records: Sequence[JsonObject]) -> None:
        """Take in the records of the steps before a resumed run."""
        for record in records:
            self._assess(record, lambda _: None)

    def _assess(self, record: JsonObject, note: Callable[[str], None]) -> None:
        findings: dict[str, str] = {}
        for name, measure in MEASURES.items():
            value = _value(record, measure.metric)
            if value is None:
                continue
            seen = self._history.setdefault(name, [])
            seen.append((value, _scored(record) if measure.of_episodes else None))
            finding = _finding(measure, seen, measure.limit or name, self._limits)
            if finding is not None:
                findings[name] = finding
                if not self._streak[name]:
                    note(f"health, step {record['step']}: {finding}")
        self._idle = self._idle + 1 if record.get("trained_samples") == 0 else 0
        if self._idle == PATIENCE:
            success = record.get("success_rate", 0.0)
            note(
                f"step {record['step']}: the last {PATIENCE} steps trained nothing, since all attempts at "
                f"each task earned the same (success {success:.0%}): take harder tasks if it is high, easier "
                "ones or more demonstrations if it is low"
            )
        self._streak = Counter({name: self._streak[name] + 1 for name in findings})
        self.is_well = not findings
        ends = next((name for name, steps in self._streak.items() if steps >= PATIENCE), None)
        self._reason = (
            None if ends is None else f"health: {findings[ends]}, {self._streak[ends]} steps in a row"
        )


_HARDLY_BEGUN = 0.01  # of the demonstrations' calls: a model that begins fewer makes next to none itself
_LEARNED = 1.0  # nats a token: below it the rest of the demonstrations is learned


def calls_not_learned(records: Sequence[JsonObject], *, is_over: bool = False) -> str | None:
    """Return what is to be said of supervised training that leaves the calls out: the model begins hardly any
    call where a demonstration makes one (`calls_begun`), though it has learned the rest or the run
    `is_over`."""
    last = [record for record in records if "calls_begun" in record][-_LEVEL_STEPS:]
    if not last:
        return None
    begun, loss = (fmean(record[name] for record in last) for name in ("calls_begun", "loss"))
    if begun >= _HARDLY_BEGUN or (loss > _LEARNED and not is_over):
        return None
    return (
        "calls are not learned: when a demonstration makes one, the model begins it with probability "
        f"{begun:.1g}, at a loss of {loss:.2g}. If it was never trained on what a call begins with, another "
        "rollout.tool_format begins otherwise, and finetune.mode=full trains that"
    )


PPOHealthCallback = HealthMonitor  # the name under which users of PPO trainers know such a monitor


def _scored(record: JsonObject) -> int | None:
    """The episodes that a mean of a step is over; None if the record does not say."""
    return record["episodes"] - record.get("unscored", 0) if "episodes" in record else None


def _level(seen: Sequence[_Seen], end: int, *, steps: int) -> tuple[float, int] | None:
    """Return the mean of the `steps` steps before `end`, or of all while there are fewer, and how many they
    are; of more if those are too few episodes, and None while all are."""
    for count in range(min(steps, end), min(_MOST_STEPS, end) + 1):
        last = seen[end - count : end]
        counts = [episodes for _, episodes in last if episodes is not None]
        if len(counts) < len(last):
            return fmean(value for value, _ in last), count
        if sum(counts) >= _ENOUGH:
            return math.fsum(value * (n or 0) for value, n in last) / sum(counts), count
    return None


def _value(record: JsonObject, metric: str) -> float | None:
    """Return a metric of a record; of success, the one with unscored episodes counted as failed if there is
    one: a policy whose failures drop out must not look well."""
    of_all = record.get(f"{metric}_all")
    return record.get(metric) if of_all is None else of_all


def episode_measures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return calls, lengths and reward components of a step's scored episodes, each component with its
    correlation to success (None if one of both is constant)."""
    scored = [t for t in trajectories if t.reward is not None]
    if not scored:
        return {}
    calls = [t.call_count for t in scored]
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


def _finding(measure: Measure, seen: Sequence[_Seen], name: str, limits: Mapping[str, float]) -> str | None:
    """Return a sentence like `tools are abandoned: calls_mean is 0.03, 0.02 of its highest level (limit 0.1:
    calls_fall)` if the last step is past the limit; None if it is not, or there is too little to go by."""
    limit, now = limits.get(name), _level(seen, len(seen), steps=1)
    if limit is None or now is None:
        return None
    value, steps = now
    shown, against = value, ""
    if measure.kind != "above":
        earlier = range(1, len(seen) - steps + 1)
        levels = [level[0] for end in earlier if (level := _level(seen, end, steps=_LEVEL_STEPS))]
        best = (max if measure.kind == "fall" else min)(levels, default=0.0)
        if best <= measure.least:
            return None
        shown = value / best
        which = "of its highest level" if measure.kind == "fall" else "times its lowest level"
        against = f", {shown:.2g} {which}"
    is_past = shown < limit if measure.kind == "fall" else shown > limit
    if math.isfinite(shown) and not is_past:
        return None
    over = f" over {steps} steps" if steps > 1 else ""
    return f"{measure.sentence}: {measure.metric} is {value:.3g}{over}{against} (limit {limit:g}: {name})"
