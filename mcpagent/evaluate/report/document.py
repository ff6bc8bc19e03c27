"""What a report says, as one record: the figures of its page, and those of several runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from mcpagent.core.records import JsonObject, Metric, Record
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import ERRORS, Breakdown, ErrorKind
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.report.figures import TREND_STEPS, Band, Chart, Curve, charts, term_weights
from mcpagent.evaluate.report.run_data import AFTER, BEFORE, SAMPLED, Control, RunView, flatten
from mcpagent.evaluate.report.verdicts import Verdict, judge
from mcpagent.evaluate.summary import CALIBRATION, RATE_METRICS, EvalResult, success_of_all
from mcpagent.tools.metrics import PoolMetrics

SCHEMA_VERSION = 1
SETTINGS = (("greedy", ""), ("sampled", SAMPLED))
SHOWN_METRICS: dict[str, str] = {
    "tool_sequence_accuracy": "Exact tool sequence",
    "answer_accuracy": "Right answer",
    "coverage": "Gold calls covered",
    "mean_reward": "Mean reward",
    "invalid_call_rate": "Invalid calls",
    "parse_failure_rate": "Calls that do not parse",
    "tool_error_rate": "Tool errors",
    "mean_tool_calls": "Tool calls per episode",
    "mean_searches": "Searches for tools per episode",
    "mean_turns": "Turns per episode",
}


class SuccessRow(Record):
    """Task success of one part of the tasks: `all` (unscored episodes counted as failed), `scored only`, or a
    complexity. `difference` is paired by task; both are None without a common task."""

    evaluation: str  # greedy, sampled, or the name of an evaluation that stands alone
    temperature: float | None
    part: str
    before: Metric | None
    after: Metric | None
    difference: Metric | None
    p_value: float | None


class MeasureRow(Record):
    """Another measure of the evaluations before and after training."""

    name: str
    label: str
    is_rate: bool
    before: Metric | None
    after: Metric | None


class TermRow(Record):
    """A reward term while training: means of its first and last steps, and of the correlations with success
    of the last ones (None where it or success is constant)."""

    name: str
    weight: float
    first: float
    last: float
    correlation_with_success: float | None


class CurveChart(Record):
    """One chart: its curves over `steps` of the document, and where they are not healthy any more."""

    id: str
    title: str
    note: str
    is_rate: bool
    curves: tuple[Curve, ...]
    bands: tuple[Band, ...]


class Cost(Record):
    """What training took, as far as the steps said."""

    steps: int
    episodes: int
    tokens: int
    tool_calls: int
    cpu_s: float
    rollout_cpu_s: float
    update_cpu_s: float


class EpisodeCounts(Record):
    """The stored episodes of one file."""

    episodes: int
    successes: int
    failures: int
    unscored: int
    stop_reasons: dict[str, int]


class VerdictRow(Record):
    """The verdict on one success criterion."""

    name: str
    outcome: Literal["pass", "fail", "not measured"]
    evidence: str
    rule: str


class ReportDocument(Record):
    """All figures of a report. Fields may be added, none is renamed."""

    schema_version: int = SCHEMA_VERSION
    run: str
    title: str
    about: str
    split: str
    verdicts: tuple[VerdictRow, ...]
    success: tuple[SuccessRow, ...]
    measures: tuple[MeasureRow, ...]
    breakdown: Breakdown | None
    steps: tuple[int, ...]
    charts: tuple[CurveChart, ...]
    reward_terms: tuple[TermRow, ...]
    cost: Cost
    controls: tuple[Control, ...]
    wasteful: tuple[Control, ...]
    tools: PoolMetrics | None
    episodes: dict[str, EpisodeCounts]
    manifest: JsonObject
    config: JsonObject
    evaluations: dict[str, JsonObject]  # the provenance of each


class RunsDocument(Record):
    """Several runs side by side. `against_first` has for each run, by evaluation (greedy, sampled), the
    paired difference of its success to that of the first run: None for the first, and on other tasks.
    `configuration` has the keys in which the runs differ, a value for each run (None: not set)."""

    schema_version: int = SCHEMA_VERSION
    names: tuple[str, ...]
    runs: tuple[ReportDocument, ...]
    against_first: tuple[dict[str, Metric | None], ...]
    has_same_tasks: bool
    configuration: dict[str, tuple[str | None, ...]]


def documents_of(runs: Sequence[RunView]) -> RunsDocument:
    """The figures of several runs. Raises UserError where a run is named twice."""
    places = [run.path.resolve() for run in runs]
    if len(set(places)) < len(places):
        twice = next(run.path for run in runs if places.count(run.path.resolve()) > 1)
        raise UserError(f"the run {twice} is named twice", remedy="name each run once")
    afters = [{name: run.evaluations.get(AFTER + suffix) for name, suffix in SETTINGS} for run in runs]
    against = [{name: _difference(afters[0][name], after[name]) for name, _ in SETTINGS} for after in afters]
    tasks = [frozenset(e.tasks) for after in afters for e in after.values() if e is not None]
    configurations = [dict(flatten(run.config)) for run in runs]
    keys = dict.fromkeys(key for configuration in configurations for key in configuration)
    values = {key: tuple(configuration.get(key) for configuration in configurations) for key in keys}
    return RunsDocument(
        names=tuple(_names(places)),
        runs=tuple(document_of(run) for run in runs),
        against_first=({name: None for name, _ in SETTINGS}, *against[1:]),
        has_same_tasks=len(set(tasks)) <= 1,
        configuration={key: value for key, value in values.items() if len(set(value)) > 1},
    )


def _difference(first: EvalResult | None, other: EvalResult | None) -> Metric | None:
    """Of a few common tasks it would say little about either run: all have to be the same."""
    if first is None or other is None or first.tasks.keys() != other.tasks.keys():
        return None
    comparison = compare_or_none(first, other)
    return None if comparison is None else comparison.difference_all


def _names(places: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    most = max(len(place.parts) for place in places)
    for length in range(1, most + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]


def final_success(document: ReportDocument, evaluation: str) -> Metric | None:
    """Success after training, unscored episodes counted as failed."""
    rows = (row for row in document.success if (row.evaluation, row.part) == (evaluation, "all"))
    return next((row.after for row in rows), None)


def side_by_side(document: RunsDocument) -> list[tuple[str, str, tuple[Metric | None, ...]]]:
    """Success of each run on each slice: what divides the tasks, the part, a metric for each run."""
    slices = [run.breakdown.slices if run.breakdown is not None else {} for run in document.runs]
    parts = dict.fromkeys((by, part) for one in slices for by, division in one.items() for part in division)
    rows: list[tuple[str, str, tuple[Metric | None, ...]]] = []
    for by, part in sorted(parts):
        shown = [one.get(by, {}).get(part) for one in slices]
        rows.append((by, part, tuple(each.task_success if each else None for each in shown)))
    return [row for row in rows if sum(other[0] == row[0] for other in rows) > 1]


def failures_side_by_side(document: RunsDocument) -> list[tuple[str, tuple[int | None, ...]]]:
    """How many episodes of each run failed in each way; None for a run without a breakdown."""
    errors = [run.breakdown.errors if run.breakdown is not None else None for run in document.runs]
    counts = {kind: tuple(None if e is None else _count(e.get(kind)) for e in errors) for kind in ERRORS}
    return [(kind, row) for kind, row in counts.items() if any(row)]


def _count(kind: ErrorKind | None) -> int:
    return 0 if kind is None else kind.episodes


def document_of(run: RunView) -> ReportDocument:
    """The figures of a run's report."""
    return ReportDocument(
        run=str(run.path),
        title=title_of(run),
        about=str(run.manifest.get("about") or ""),
        split=run.split,
        verdicts=tuple(_verdict_row(verdict) for verdict in judge(run)),
        success=tuple(success_rows(run)),
        measures=tuple(measure_rows(run)),
        breakdown=last_breakdown(run),
        steps=tuple(int(row["step"]) for row in run.steps),
        charts=tuple(_curve_chart(chart) for chart in charts(run)),
        reward_terms=tuple(term_rows(run)),
        cost=cost_of(run),
        controls=tuple(run.controls),
        wasteful=tuple(run.wasteful),
        tools=run.tool_metrics,
        episodes=_episode_counts(run),
        manifest=run.manifest,
        config=run.config,
        evaluations={name: e.provenance for name, e in run.evaluations.items()},
    )


def title_of(run: RunView) -> str:
    """What the manifest calls the run, else the name of its folder."""
    return str(run.manifest.get("title") or run.path.resolve().name)


def compare_or_none(
    before: EvalResult | None, after: EvalResult | None, *, complexity: str | None = None
) -> Comparison | None:
    """`compare`, or None where the two share no scored task."""
    if before is None or after is None:
        return None
    try:
        return compare(before, after, complexity=complexity)
    except UserError:
        return None


def success_rows(run: RunView) -> list[SuccessRow]:
    """Task success before and after, greedy and sampled, whole and by complexity, and that of evaluations
    which stand alone."""
    rows: list[SuccessRow] = []
    for name, suffix in SETTINGS:
        before, after = run.evaluations.get(BEFORE + suffix), run.evaluations.get(AFTER + suffix)
        if before is not None or after is not None:
            rows += _rows_of_pair(name, before, after)
    paired = {side + suffix for side in (BEFORE, AFTER) for _, suffix in SETTINGS}
    for name, evaluation in run.evaluations.items():
        if name not in paired:
            rows += _rows_of_pair(name, None, evaluation)[:2]
    return rows + _calibration_rows(run)


def _calibration_rows(run: RunView) -> list[SuccessRow]:
    """What the last evaluation that has them is read against: one row each."""
    order = (run.evaluations.get(AFTER), run.evaluations.get(BEFORE), *run.evaluations.values())
    rows = next((e.calibration for e in order if e is not None and e.calibration), {})
    return [
        SuccessRow(
            evaluation="calibration",
            temperature=None,
            part=f"{name} ({CALIBRATION.get(name, 'another policy')})",
            before=None,
            after=row.task_success,
            difference=None,
            p_value=None,
        )
        for name, row in rows.items()
    ]


def _rows_of_pair(name: str, before: EvalResult | None, after: EvalResult | None) -> list[SuccessRow]:
    shown = [evaluation for evaluation in (before, after) if evaluation is not None]
    whole = compare_or_none(before, after)

    def row(part: str, sides: Sequence[Metric | None], comparison: Comparison | None) -> SuccessRow:
        judged = comparison if comparison is not None and comparison.why_no_verdict is None else None
        change = comparison and (
            comparison.difference if part == "scored only" else comparison.difference_all
        )
        return SuccessRow(
            evaluation=name,
            temperature=_temperature(shown[-1]),
            part=part,
            before=sides[0],
            after=sides[1],
            difference=change,
            p_value=judged.p_value if judged is not None else None,
        )

    both = (before, after)
    rows = [
        row("all", [e and success_of_all(e) for e in both], whole),
        row("scored only", [e and e.metrics.get("task_success") for e in both], whole),
    ]
    levels = dict.fromkeys(level for evaluation in shown for level in evaluation.by_complexity)
    for level in levels if len(levels) > 1 else ():
        comparison = compare_or_none(before, after, complexity=level)
        rows.append(row(level, [e and success_of_all(e, complexity=level) for e in both], comparison))
    return rows


def measure_rows(run: RunView) -> list[MeasureRow]:
    """The other numbers of the greedy evaluations, and pass@k of the sampled ones."""
    rows: list[MeasureRow] = []
    for suffix, names in (("", SHOWN_METRICS), (SAMPLED, _pass_names(run.evaluations.get(AFTER + SAMPLED)))):
        before, after = (run.evaluations.get(side + suffix) for side in (BEFORE, AFTER))
        for name, label in names.items():
            sides = [e.metrics.get(name) if e else None for e in (before, after)]
            if any(metric is not None and metric.value is not None for metric in sides):
                is_rate = name in RATE_METRICS or suffix == SAMPLED
                rows.append(
                    MeasureRow(name=name, label=label, is_rate=is_rate, before=sides[0], after=sides[1])
                )
    return rows


def last_breakdown(run: RunView) -> Breakdown | None:
    """That of the last greedy evaluation; None where no evaluation has one."""
    evaluations = [run.evaluations.get(AFTER), run.evaluations.get(BEFORE), *run.evaluations.values()]
    return next((e.breakdown for e in evaluations if e is not None and e.breakdown is not None), None)


def term_rows(run: RunView) -> list[TermRow]:
    """The reward terms that the steps report, those with a weight first."""
    weights = term_weights(run)
    reported = {key.removeprefix("reward_") for row in run.steps for key in row if key.startswith("reward_")}
    names = [n for n in weights if n in reported] + sorted(reported - weights.keys() - {"mean"})
    rows: list[TermRow] = []
    for name in names:
        values = run.values(f"reward_{name}")
        correlations = [v for v in run.series(f"corr_{name}")[-TREND_STEPS:] if v is not None]
        if values:
            rows.append(
                TermRow(
                    name=name,
                    weight=weights.get(name, 0.0),
                    first=fmean(values[:TREND_STEPS]),
                    last=fmean(values[-TREND_STEPS:]),
                    correlation_with_success=fmean(correlations) if correlations else None,
                )
            )
    return rows


def cost_of(run: RunView) -> Cost:
    """Sums over the steps."""
    rollout_cpu_s, update_cpu_s = sum(run.values("rollout_cpu_s")), sum(run.values("update_cpu_s"))
    return Cost(
        steps=len(run.steps),
        episodes=round(sum(run.values("episodes"))),
        tokens=round(sum(run.values("tokens"))),
        tool_calls=round(sum(run.values("tool_calls"))),
        cpu_s=sum(run.values("cpu_s")) or rollout_cpu_s + update_cpu_s,
        rollout_cpu_s=rollout_cpu_s,
        update_cpu_s=update_cpu_s,
    )


def cost_text(cost: Cost) -> str:
    """`2,304 episodes of 24 sampled tokens, 39 CPU seconds`."""
    length = f" of {cost.tokens / cost.episodes:,.0f} sampled tokens" if cost.episodes and cost.tokens else ""
    facts = [
        f"{cost.episodes:,} episodes{length}" if cost.episodes else "",
        f"{cost.cpu_s:,.0f} CPU seconds" if cost.cpu_s else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def _temperature(evaluation: EvalResult) -> float | None:
    value = evaluation.provenance.get("temperature")
    return float(value) if isinstance(value, int | float) else None


def _pass_names(evaluation: EvalResult | None) -> dict[str, str]:
    names = [n for n in evaluation.metrics if n.startswith(("pass@", "pass^"))] if evaluation else []
    most = max((int(n[5:]) for n in names), default=0)
    return {n: f"{n} (sampled)" for n in (f"pass@{most}", f"pass^{most}") if n in names}


def _verdict_row(verdict: Verdict) -> VerdictRow:
    return VerdictRow(
        name=verdict.name, outcome=verdict.outcome, evidence=verdict.evidence, rule=verdict.rule
    )


def _curve_chart(chart: Chart) -> CurveChart:
    return CurveChart(
        id=chart.id,
        title=chart.title,
        note=chart.note,
        is_rate=chart.is_rate,
        curves=chart.curves,
        bands=chart.bands,
    )


def _episode_counts(run: RunView) -> dict[str, EpisodeCounts]:
    counts: dict[str, EpisodeCounts] = {}
    for stem, file in sorted(run.episodes.files.items()) if run.episodes is not None else ():
        outcomes = Counter(row["outcome"] for row in file.rows)
        counts[stem] = EpisodeCounts(
            episodes=len(file.rows),
            successes=outcomes["success"],
            failures=outcomes["failure"],
            unscored=outcomes["unscored"],
            stop_reasons=dict(sorted(Counter(row["stop"] for row in file.rows).items())),
        )
    return counts
