"""How evaluations and their comparison are shown: the blocks that several commands print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpagent.console import METRIC_COLUMNS, Block, Facts, Table, counted, metric_row
from mcpagent.core.records import JsonObject
from mcpagent.evaluate.breakdown import Breakdown
from mcpagent.evaluate.compare import Comparison
from mcpagent.evaluate.summary import ABOUT_ANY_FORM, IN_ANY_FORM, EvalSummary, is_rate

if TYPE_CHECKING:
    from mcpagent.judge.check import JudgeCheck

_BY_COMPLEXITY = (
    "task_success",
    "task_success_scored",
    "tool_sequence_accuracy",
    "mean_reward",
    "invalid_call_rate",
    "mean_turns",
)
_NAMES = {
    "task_success_scored": "task success, scored only",
    IN_ANY_FORM: "success in any form (upper bound)",
}


def metrics_blocks(summary: EvalSummary) -> Iterator[Block]:
    """Yield a table with every metric and its interval over all tasks, the main ones by complexity too; one
    line each, so that it fits a narrow terminal."""
    rows: list[Sequence[str]] = []
    for name in _BY_COMPLEXITY:
        rows.append(metric_row(_words(name), summary.metrics[name], is_rate=is_rate(name)))
        if len(summary.by_complexity) > 1:
            parts = summary.by_complexity.items()
            rows += [metric_row(f"  {c}", getattr(part, name), is_rate=is_rate(name)) for c, part in parts]
    rows += [
        metric_row(_words(name), metric, is_rate=is_rate(name))
        for name, metric in summary.metrics.items()
        if name not in _BY_COMPLEXITY and metric.value is not None
    ]
    title = f"{counted(summary.n_episodes, 'episode')} of {counted(summary.n_tasks, 'task')}"
    yield Table(title, METRIC_COLUMNS, rows)
    if IN_ANY_FORM in summary.metrics:
        yield ABOUT_ANY_FORM
    if summary.unscored:
        yield (
            f"{summary.unscored} of {summary.n_episodes} episodes are unscored (infrastructure failed): task "
            "success and pass@k count them as failed, the other lines leave them out"
        )


def breakdown_blocks(breakdown: Breakdown) -> Iterator[Block]:
    """Yield what an evaluation is made of, as the report shows it, and how long its episodes took."""
    from mcpagent.evaluate.report.tables import breakdown_tables

    for part in breakdown_tables(breakdown):
        yield Table(part.title, [name.removeprefix("*") for name in part.columns], part.rows, is_text=True)
    times = breakdown.episode_latency
    if times.p50_s is not None and times.p95_s is not None:
        yield Facts([("episode", f"{times.p50_s:.2f} s (median), {times.p95_s:.2f} s (95th percentile)")])


def ended_by(summary: EvalSummary) -> tuple[str, str]:
    """Return the fact of how often each reason ended an episode."""
    return "ended by", ", ".join(f"{name} {n}" for name, n in summary.stop_reasons.items())


def cassette_fact(counts: JsonObject | None) -> tuple[str, str | None]:
    """Return the fact of what a cassette did (`Cassette.take_counts`), if there was one."""
    if counts is None:
        return "cassette", None
    parts = [f"{counts[name]} {name}" for name in ("replayed", "live", "recorded")]
    parts += [f"{counts['volatile']} volatile"] if counts["volatile"] else []
    parts += [f"{count} missed ({reason.replace('_', ' ')})" for reason, count in counts["misses"].items()]
    return "cassette", f"{counts['mode']}: {', '.join(parts)}"


def comparison_blocks(result: Comparison, a: str, b: str) -> Iterator[Block]:
    """Yield what a comparison of the evaluations named `a` and `b` says."""
    rows = [
        metric_row(f"a  {a}", result.a, is_rate=True),
        metric_row("   scored only", result.a_scored, is_rate=True),
        metric_row(f"b  {b}", result.b, is_rate=True),
        metric_row("   scored only", result.b_scored, is_rate=True),
        metric_row("b - a", result.difference, is_rate=True, signed=True),
        metric_row("   scored only", result.difference_scored, is_rate=True, signed=True),
    ]
    yield Table("Task success, unscored counted as failed", METRIC_COLUMNS, rows)
    counts = (("a", result.a_count), ("b", result.b_count))
    unscored = ", ".join(f"{name} {n.unscored} of {n.episodes} episodes" for name, n in counts)
    yield Facts([("unscored", unscored)])
    if result.why_no_verdict is not None:
        yield f"no verdict: {result.why_no_verdict}; evaluate again while the servers hold"
    else:
        yield f"{result.verdict}" + ("" if result.p_value is None else f" (p = {result.p_value:.3g})")
    yield from part_blocks({"b - a": result}, ("a", "b"))
    yield (
        f"b wins {counted(result.wins, 'task')}, loses {result.losses}, ties {result.ties}; "
        f"{counted(result.unpaired, 'task')} in one of the two only"
    )


def part_blocks(comparisons: Mapping[str, Comparison], sides: tuple[str, str]) -> Iterator[Block]:
    """Yield success by part, and a line that says whether anything got worse from one side to the other in
    one of the comparisons, by how they were sampled."""
    from mcpagent.evaluate.report.numbers import change, rate
    from mcpagent.evaluate.report.verdicts import nothing_worse

    for how, comparison in comparisons.items():
        rows = [
            (one.name, rate(one.a), rate(one.b), change(one.difference), str(one.difference.n))
            for one in comparison.parts[1:]
        ]
        if rows:
            yield Table(f"Task success by part, {how}", ("", *sides, "points", "tasks"), rows)
    holds, evidence = nothing_worse(comparisons)
    said = {True: "nothing got worse", False: "something got worse", None: "what got worse is not known"}
    yield f"{said[holds]} ({evidence})"


def judge_blocks(check: JudgeCheck, *, min_kappa: float, path: Path | None) -> Iterator[Block]:
    """Yield how far a judge agrees with the rule, and whether training would take it."""
    rows = [
        metric_row("agreement with the rule", check.agreement, is_rate=True),
        metric_row("Cohen's kappa", check.kappa, is_rate=False),
        metric_row("wrong approved", check.false_approvals, is_rate=True),
        metric_row("right refused", check.false_refusals, is_rate=True),
    ]
    of = counted(check.n_tasks, "task")
    title = f"{check.judge['model']}: {counted(check.n_episodes, 'episode')} of {of}"
    yield Table(title, METRIC_COLUMNS, rows)
    faults = ", ".join(f"{name} ({n})" for name, n in check.faults.items())
    cost = check.spend["cost_usd"]
    spent = "" if cost is None else f", ${cost:.4f}"
    verdict = (
        "training takes this judge" if check.is_good_enough(min_kappa) else "training refuses this judge"
    )
    yield Facts(
        [
            ("unscored", f"{check.unscored}: {faults}" if check.unscored else None),
            ("asked", f"{counted(check.spend['requests'], 'request')}{spent}"),
            ("kappa", f"judge.min_kappa is {min_kappa:g}: {verdict}"),
            ("written", None if path is None else str(path)),
            ("next", None if path is None else f"mcpagent train --set judge.check={path}"),
        ]
    )


def dataset_blocks(document: Mapping[str, Any], *, is_text: bool = False) -> Iterator[Block]:
    """Yield the splits that were written, what each stage kept, and an example of each reject."""
    splits = [(split, document["by_split"][split], path) for split, path in document["paths"].items()]
    if splits:
        yield Table("Tasks", ("Split", "Tasks", "File"), splits)
    for name in ("template", "class"):
        if counts := document.get(f"by_{name}"):
            yield Table(f"By {name}", (name.capitalize(), "Tasks"), list(counts.items()))
    yield Table("Yield", ("Stage", "In", "Out", "Rejected"), stage_rows(document), is_text=is_text)
    for code, texts in document["reject_examples"].items():
        yield f"  {code}: {texts[0][:200]}"


def stage_rows(document: Mapping[str, Any]) -> list[Sequence[object]]:
    """Return a row for each stage that records went through."""
    return [
        (row["name"], row["in"], row["out"], ", ".join(f"{c} {n}" for c, n in row["rejects"].items()))
        for row in document["stages"]
    ]


def _words(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))
