"""Is the run still healthy? What the steps show, against limits that warn or end it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import StatisticsError, correlation, fmean
from typing import Any, Literal, Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.intervals import rate_interval
from mcpagent.reward.rule import WEIGHTS


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
        """Why the run is to end now; None goes on."""
        ...


_LEVEL_STEPS = 3  # a level is the mean of at least so many steps
_ENOUGH = 64  # episodes: what fewer of them say is left to chance
_MOST_STEPS = 16  # that are taken together to have enough
_LOOP = 3  # the same call so often in an episode is a loop


@dataclass(frozen=True)
class Measure:
    """`metric` of a step's record. `kind` says what a limit is compared with: the metric itself, or the
    metric as a multiple of the lowest (`rise`) or the highest (`fall`) level so far. Below `least` a highest
    level is too low to fall from. What is `of_episodes` is judged by enough of them, of several steps where
    one has too few; of a share the whole 95% interval must be past a limit."""

    metric: str
    kind: str  # above, rise, fall
    sentence: str
    least: float = 0.0
    of_episodes: Literal["no", "mean", "share"] = "no"


# By the names of the limits in the configuration (`config.sections.HealthLimits`).
MEASURES: dict[str, Measure] = {
    "approx_kl": Measure("approx_kl", "above", "one update moved the policy far from what sampled"),
    "kl": Measure("kl", "above", "the policy is far from the reference"),
    "clip_fraction": Measure("clip_fraction", "above", "the clip takes away much of the gradient"),
    "logprob_drift": Measure("logprob_drift_max", "above", "sampler and trainer disagree on a token"),
    "sampler_kl": Measure("sampler_kl", "above", "sampler and trainer are two policies"),
    "entropy_rise": Measure("entropy", "rise", "the policy dissolves into noise"),
    "entropy_fall": Measure("entropy", "fall", "the policy no longer explores", least=1e-3),
    "grad_norm_rise": Measure("grad_norm", "rise", "gradients explode"),
    "uniform_share": Measure(
        "uniform_share", "above", "attempts at a task no longer differ", of_episodes="mean"
    ),
    "success_fall": Measure("success_rate", "fall", "success is lost", least=0.1, of_episodes="share"),
    "calls_rise": Measure("calls_mean", "rise", "calls are spammed", of_episodes="mean"),
    "calls_fall": Measure("calls_mean", "fall", "tools are abandoned", least=0.2, of_episodes="mean"),
    "loop_share": Measure("loop_share", "above", "the same call is repeated", of_episodes="share"),
    "tokens_rise": Measure("tokens_mean", "rise", "episodes grow long", of_episodes="mean"),
    "tokens_fall": Measure("tokens_mean", "fall", "episodes grow short", least=1.0, of_episodes="mean"),
    "term_against_success": Measure(
        "term_against_success", "above", "a reward term rises while success falls"
    ),
}


@dataclass(frozen=True, kw_only=True)
class HealthSettings:
    """Limits by the names of MEASURES. A run ends after `patience` steps in a row past one of `stop`.
    `reward_weights` are those of the terms that are held against success."""

    warn: dict[str, float]
    stop: dict[str, float]
    patience: int = 3
    reward_weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)


class HealthMonitor:
    """Adds measures of health to every record, warns through `note`, and says when to stop.

    What it remembers is a function of the records: a resumed run hands them to `replay`.
    """

    def __init__(self, settings: HealthSettings, *, note: Callable[[str], None] = lambda _: None) -> None:
        self._settings, self._note = settings, note
        self._history: dict[str, list[_Seen]] = {}
        self._terms = _TermWatch(settings.reward_weights)
        self._streak: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._reason: str | None = None
        self.is_well = True  # no limit of `stop` was passed at the last step

    def on_step(self, report: StepReport) -> None:
        """Add the measures of the episodes to the metrics of the step, and hold them against the limits."""
        if "calls_mean" not in report.metrics:
            report.metrics.update(episode_measures(report.trajectories))
        self._assess(report.metrics, self._note)

    def should_stop(self) -> str | None:
        """Why the run should end; None while it is healthy, or only warned about."""
        return self._reason

    def replay(self, records: Sequence[JsonObject]) -> None:
        """Take in the records of the steps before a resumed run."""
        for record in records:
            self._assess(record, lambda _: None)

    def _assess(self, record: JsonObject, note: Callable[[str], None]) -> None:
        self._terms.look(record)
        for measure in {measure.metric: measure for measure in MEASURES.values()}.values():
            if (value := _value(record, measure.metric)) is not None:
                self._history.setdefault(measure.metric, []).append(_seen(measure, value, record))
        passed: dict[str, _Level] = {}
        for name, measure in MEASURES.items():
            level = self._compared(measure) if _value(record, measure.metric) is not None else None
            if level is None:
                continue
            if _is_past(measure, level.shown, self._settings.stop.get(name)):
                passed[name] = level
            if not _is_past(measure, level.shown, self._settings.warn.get(name)):
                self._warned.discard(name)
            elif name not in self._warned:
                self._warned.add(name)
                term = self._terms.worst if name == "term_against_success" else None
                of_term = "" if term is None else f" ({term})"
                note(f"health, step {record['step']}: {_finding(name, level, self._settings.warn)}{of_term}")
        self._streak = Counter({name: self._streak[name] + 1 for name in passed})
        self.is_well = not passed
        self._reason = None
        for name, steps in self._streak.items():
            if steps >= self._settings.patience:
                finding = _finding(name, passed[name], self._settings.stop)
                self._reason = f"health: {finding}, {steps} steps in a row"
                break

    def _compared(self, measure: Measure) -> _Level | None:
        """What a limit is for, now; None where there is too little to go by or nothing to compare with."""
        seen = self._history[measure.metric]
        windows = [pooled for n in range(1, min(len(seen), _MOST_STEPS) + 1) if (pooled := _pool(seen[-n:]))]
        if not windows:
            return None
        now = windows[0]
        # A sudden loss shows in the last step alone, a small one in several: but the last ones must show it.
        if measure.kind == "fall":
            shown = max(now.mean, min(window.high for window in windows))
        else:
            shown = min(now.mean, max(window.low for window in windows))
        if measure.kind != "above":
            levels = _levels(seen[: -now.steps])
            best = (max if measure.kind == "fall" else min)(levels, default=0.0)
            if best <= measure.least:
                return None
            shown /= best
        return _Level(now, shown)


class _TermWatch:
    """Holds each reward term against success: since the steps of the highest success, has success fallen and
    what the term adds risen, both by more than chance? Adds `term_against_success` to the record, the
    largest such rise; `worst` says whose."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._signs = {
            name: math.copysign(1.0, weight)
            for name, weight in weights.items()
            if weight and name != "success"
        }
        self._steps: list[dict[str, _Seen]] = []
        self._best: list[dict[str, _Pooled]] = []  # the windows up to each step
        self.worst: str | None = None

    def look(self, record: JsonObject) -> None:
        """Take in a step."""
        self.worst, success = None, _value(record, "success_rate")
        if not self._signs or success is None or "episodes" not in record:
            return
        scored = record["episodes"] - record.get("unscored", 0)
        terms = {name: record.get(f"reward_{name}") for name in self._signs}
        if not record.get("penalty_active", True):
            terms["penalty"] = None  # out of force, it adds nothing
        values = {"success": success, **{name: v for name, v in terms.items() if v is not None}}
        self._steps.append({name: _Seen(min(max(v, 0.0), 1.0), scored, True) for name, v in values.items()})
        now = self._pooled(len(self._steps))
        before = (
            [window for window in self._best[: len(self._steps) - now["success"].steps] if window]
            if now
            else []
        )
        self._best.append(now)
        if not before:
            return
        best = max(before, key=lambda window: window["success"].mean)
        if now["success"].high >= best["success"].low:
            return
        rises = {
            name: sign * (now[name].mean - best[name].mean)
            for name, sign in self._signs.items()
            if name in now and name in best and _is_risen(best[name], now[name], sign)
        }
        if rises:
            self.worst = max(rises, key=lambda name: rises[name])
            record["term_against_success"] = rises[self.worst]

    def _pooled(self, end: int) -> dict[str, _Pooled]:
        """The fewest last steps up to `end` that are enough episodes, taken together; empty where none
        are."""
        for count in range(1, min(end, _MOST_STEPS) + 1):
            steps = self._steps[end - count : end]
            success = _pool([step["success"] for step in steps])
            if success is not None:
                shared = set.intersection(*(set(step) for step in steps))
                pooled = {name: _pool([step[name] for step in steps]) for name in shared}
                return {name: window for name, window in pooled.items() if window is not None}
        return {}


def _is_risen(before: _Pooled, now: _Pooled, sign: float) -> bool:
    """Whether the intervals are apart; that of a share is wide enough for the mean of any values in 0..1."""
    return now.low > before.high if sign > 0 else now.high < before.low


PPOHealthCallback = HealthMonitor  # the name under which users of PPO trainers know such a monitor


@dataclass(frozen=True)
class _Seen:
    """A metric at one step; `episodes` is None where it is not a mean over them, or the record does not
    say."""

    value: float
    episodes: int | None
    is_share: bool = False


@dataclass(frozen=True)
class _Pooled:
    """The last `steps` of a metric taken together, with the 95% interval where it is a share."""

    mean: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True)
class _Level:
    """Where a metric is, and the number that is compared with limits."""

    now: _Pooled
    shown: float


def _seen(measure: Measure, value: float, record: JsonObject) -> _Seen:
    scored = record["episodes"] - record.get("unscored", 0) if "episodes" in record else None
    of_episodes = measure.of_episodes != "no"
    return _Seen(value, scored if of_episodes else None, measure.of_episodes == "share")


def _pool(seen: Sequence[_Seen]) -> _Pooled | None:
    """None where these are too few episodes, or more steps than it takes to say anything."""
    counts = [step.episodes for step in seen if step.episodes is not None]
    if len(counts) < len(seen):
        value = seen[-1].value
        return _Pooled(value, value, value, 1) if len(seen) == 1 else None
    total = sum(counts)
    if total < _ENOUGH:
        return None
    events = math.fsum(step.value * count for step, count in zip(seen, counts, strict=True))
    mean = events / total
    if not seen[-1].is_share:
        return _Pooled(mean, mean, mean, len(seen))
    interval = rate_interval(min(max(events, 0.0), total), total)
    assert interval.ci_low is not None and interval.ci_high is not None
    return _Pooled(mean, interval.ci_low, interval.ci_high, len(seen))


def _levels(seen: Sequence[_Seen]) -> list[float]:
    """At each step the mean of the last `_LEVEL_STEPS` steps, or of all while there are fewer; of more where
    those are too few episodes, and none while all are."""
    levels: list[float] = []
    for end in range(1, len(seen) + 1):
        for start in range(max(0, end - _LEVEL_STEPS), -1, -1):
            steps = seen[start:end]
            if any(step.episodes is None for step in steps):
                levels.append(fmean(step.value for step in steps))
                break
            total = sum(step.episodes or 0 for step in steps)
            if total >= _ENOUGH:
                levels.append(math.fsum(step.value * (step.episodes or 0) for step in steps) / total)
                break
    return levels


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


def _is_past(measure: Measure, shown: float, limit: float | None) -> bool:
    if limit is None:
        return False
    if not math.isfinite(shown):
        return True
    return shown < limit if measure.kind == "fall" else shown > limit


def _finding(name: str, level: _Level, limits: dict[str, float]) -> str:
    """`tools are abandoned: calls_mean is 0.03, 0.02 of its highest level (limit 0.1: calls_fall)`."""
    measure, now = MEASURES[name], level.now
    over = f" over {now.steps} steps" if now.steps > 1 else ""
    against = {
        "above": "",
        "rise": f", {level.shown:.2g} times its lowest level",
        "fall": f", {level.shown:.2g} of its highest level",
    }[measure.kind]
    limit = f"limit {limits[name]:g}: {name}"
    return f"{measure.sentence}: {measure.metric} is {now.mean:.3g}{over}{against} ({limit})"
