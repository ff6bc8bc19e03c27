"""What a report says, as one record: all figures of its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from mcpagent.core.records import JsonObject, Metric, Record
from mcpagent.evaluate.breakdown import Breakdown
from mcpagent.evaluate.compare import Comparison
from mcpagent.evaluate.report.figures import TREND_STEPS, Chart, charts, term_weights
from mcpagent.evaluate.report.run_data import AFTER, BEFORE, SAMPLED, Control, RunView
from mcpagent.evaluate.report.verdicts import Verdict, compare_or_none, judge
from mcpagent.evaluate.summary import IN_ANY_FORM, EvalResult, is_rate
from mcpagent.tools.metrics import PoolMetrics

SCHEMA_VERSION = 2
_NAMED_SERVERS = 4  # in the title
SETTINGS = (("greedy", ""), ("sampled", SAMPLED))
SHOWN_METRICS: dict[str, str] = {
    "answer_form_rate": "Answer in the stated form",
    IN_ANY_FORM: "Success in any form (upper bound)",
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
    """Task success of one part of the tasks: `all`, `scored only` (episodes that could not be scored are left
    out), or a complexity, a class, a server or what training has seen, whose `p_value` is corrected for their
    number. `difference` is paired by task; it and `p_value` are None without a common task."""

    evaluation: str  # greedy, sampled, or the name of an evaluation that stands alone
    temperature: float | None
    part: str
    episodes: int  # of the later evaluation, and how many of them could not be scored
    unscored: int
    before: Metric | None = None
    after: Metric | None = None
    difference: Metric | None = None
    p_value: float | None = None


class MeasureRow(Record):
    """Another measure of the evaluations before and after training."""

    name: str
    label: str
    is_rate: bool
    before: Metric | None
    after: Metric | None


class TermRow(Record):
    """A reward term while training: means of its first and last steps, and of the correlations with success
    of the last ones (None if it or success is constant)."""

    name: str
    weight: float
    first: float
    last: float
    correlation_with_success: float | None


class Cost(Record):
    """The cost of training, as far as the steps recorded it."""

    steps: int
    episodes: int
    tokens: int
    tool_calls: int
    cpu_s: float
    rollout_cpu_s: float
    update_cpu_s: float


class ReportDocument(Record):
    """All figures of a report."""

    schema_version: int = SCHEMA_VERSION
    run: str
    title: str
    about: str
    split: str
    verdicts: tuple[Verdict, ...]
    success: tuple[SuccessRow, ...]
    measures: tuple[MeasureRow, ...]
    breakdown: Breakdown | None
    steps: tuple[int, ...]
    charts: tuple[Chart, ...]
    reward_terms: tuple[TermRow, ...]
    cost: Cost
    controls: tuple[Control, ...]
    tools: PoolMetrics | None
    manifest: JsonObject
    config: JsonObject
    evaluations: dict[str, JsonObject]  # the provenance of each


def document_of(run: RunView) -> ReportDocument:
    """Return the figures of a run's report."""
    return ReportDocument(
        run=str(run.path),
        title=_title(run),
        about=str(run.manifest.get("about") or ""),
        split=run.split,
        verdicts=tuple(judge(run)),
        success=tuple(_success_rows(run)),
        measures=tuple(_measure_rows(run)),
        breakdown=_last_breakdown(run),
        steps=tuple(int(row["step"]) for row in run.steps),
        charts=tuple(charts(run)),
        reward_terms=tuple(_term_rows(run)),
        cost=_cost(run),
        controls=tuple(run.controls),
        tools=run.tool_metrics,
        manifest=run.manifest,
        config=run.config,
        evaluations={name: e.provenance for name, e in run.evaluations.items()},
    )


def _title(run: RunView) -> str:
    """Return what was trained, on which servers, and when the run began; what is not known is left out."""
    model = Path(str((run.config.get("model") or {}).get("name") or "")).name
    named = str(run.manifest.get("title") or f"{run.path.resolve().name}{': ' if model else ''}{model}")
    servers = sorted({*run.manifest.get("server_versions", ()), *run.nonces.results})
    more = f" and {len(servers) - _NAMED_SERVERS} more servers" if len(servers) > _NAMED_SERVERS else ""
    on = f" on {', '.join(servers[:_NAMED_SERVERS])}{more}" if servers else ""
    return ", ".join(filter(None, (named + on, str(run.manifest.get("created_at") or "")[:10])))


def _success_rows(run: RunView) -> list[SuccessRow]:
    """Return task success before and after, greedy and sampled, whole and by complexity, and that of
    evaluations which stand alone."""
    rows: list[SuccessRow] = []
    for name, suffix in SETTINGS:
        rows += _rows_of_pair(name, run.evaluations.get(BEFORE + suffix), run.evaluations.get(AFTER + suffix))
    paired = {side + suffix for side in (BEFORE, AFTER) for _, suffix in SETTINGS}
    for name, evaluation in run.evaluations.items():
        if name not in paired:
            rows += _rows_of_pair(name, None, evaluation)[:2]
    return rows


def _rows_of_pair(name: str, before: EvalResult | None, after: EvalResult | None) -> list[SuccessRow]:
    sides = (before, after)
    shown = [evaluation for evaluation in sides if evaluation is not None]
    if not shown:
        return []
    temperature = shown[-1].provenance.get("temperature")

    def row(part: str, metrics: Sequence[Metric | None], comparison: Comparison | None) -> SuccessRow:
        difference = p_value = None
        if comparison is not None:
            is_whole = part != "scored only"
            difference = comparison.difference if is_whole else comparison.difference_scored
            p_value = comparison.p_value if is_whole and comparison.why_no_verdict is None else None
        return SuccessRow(
            evaluation=name,
            temperature=float(temperature) if isinstance(temperature, int | float) else None,
            part=part,
            episodes=shown[-1].n_episodes,
            unscored=shown[-1].unscored,
            before=metrics[0],
            after=metrics[1],
            difference=difference,
            p_value=p_value,
        )

    whole = compare_or_none(before, after)
    rows = [
        row("all", [e and e.metrics["task_success"] for e in sides], whole),
        row("scored only", [e and e.metrics["task_success_scored"] for e in sides], whole),
    ]
    for part in sorted(whole.parts[1:] if whole else (), key=lambda p: (not p.has_fallen, p.b.value or 0)):
        told = {"difference": part.difference, "p_value": part.adjusted_p}
        rows.append(row(part.name, [part.a, part.b], None).model_copy(update=told))
    return rows


def _measure_rows(run: RunView) -> list[MeasureRow]:
    """Return the other numbers of the greedy evaluations, and pass@k of the sampled ones."""
    sampled = run.evaluations.get(AFTER + SAMPLED)
    passes = [n for n in sampled.metrics if n.startswith(("pass@", "pass^"))] if sampled is not None else []
    most = max((int(name[5:]) for name in passes), default=0)
    labels = {name: f"{name} (sampled)" for name in passes if int(name[5:]) == most}
    rows: list[MeasureRow] = []
    for suffix, names in (("", SHOWN_METRICS), (SAMPLED, labels)):
        pair = [run.evaluations.get(side + suffix) for side in (BEFORE, AFTER)]
        for name, label in names.items():
            before, after = (e.metrics.get(name) if e is not None else None for e in pair)
            if any(metric is not None and metric.value is not None for metric in (before, after)):
                row = MeasureRow(name=name, label=label, is_rate=is_rate(name), before=before, after=after)
                rows.append(row)
    return rows


def _last_breakdown(run: RunView) -> Breakdown | None:
    """Return that of the greedy evaluation after training, else before it, else of any other."""
    order = (run.evaluations.get(AFTER), run.evaluations.get(BEFORE), *run.evaluations.values())
    return next((e.breakdown for e in order if e is not None and e.breakdown is not None), None)


def _term_rows(run: RunView) -> list[TermRow]:
    """Return the reward terms that the steps report, those with a weight first."""
    weights = term_weights(run)
    reported = {key.removeprefix("reward_") for row in run.steps for key in row if key.startswith("reward_")}
    names = [n for n in weights if n in reported] + sorted(reported - weights.keys() - {"mean"})
    rows: list[TermRow] = []
    for name in names:
        values = run.values(f"reward_{name}")
        correlations = [v for v in run.series(f"corr_{name}")[-TREND_STEPS:] if v is not None]
        if values:
            row = TermRow(
                name=name,
                weight=weights.get(name, 0.0),
                first=fmean(values[:TREND_STEPS]),
                last=fmean(values[-TREND_STEPS:]),
                correlation_with_success=fmean(correlations) if correlations else None,
            )
            rows.append(row)
    return rows


def _cost(run: RunView) -> Cost:
    return Cost(
        steps=len(run.steps),
        episodes=round(sum(run.values("episodes"))),
        tokens=round(sum(run.values("tokens"))),
        tool_calls=round(sum(run.values("tool_calls"))),
        cpu_s=sum(run.values("cpu_s")),
        rollout_cpu_s=sum(run.values("rollout_cpu_s")),
        update_cpu_s=sum(run.values("update_cpu_s")),
    )
