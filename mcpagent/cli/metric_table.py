"""The table of an evaluation on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcpagent.console import Console, counted
from mcpagent.core.metrics import Metric
from mcpagent.core.records import JsonObject
from mcpagent.evaluate.summary import RATES, EvalSummary, success_of_all

COLUMNS = ("", "value", "95 % interval", "tasks")
_BY_COMPLEXITY = (
    "task_success_all",
    "task_success",
    "tool_sequence_accuracy",
    "mean_reward",
    "invalid_call_rate",
    "mean_turns",
)
_NAMES = {"task_success_all": "task success", "task_success": "task success, scored only"}


def print_metrics(summary: EvalSummary, console: Console) -> None:
    """Every metric with its interval over all tasks, the main ones by complexity too; one line each, so that
    it fits a narrow terminal."""
    rows: list[Sequence[str]] = []
    whole = {**summary.metrics, "task_success_all": success_of_all(summary)}
    for name in _BY_COMPLEXITY:
        rows.append(metric_row(_words(name), whole[name], is_rate=_is_rate(name)))
        if len(summary.by_complexity) > 1:
            parts: Mapping[str, Metric] = {
                complexity: success_of_all(summary, complexity=complexity)
                if name == "task_success_all"
                else getattr(part, name)
                for complexity, part in summary.by_complexity.items()
            }
            rows += [metric_row(f"  {c}", part, is_rate=_is_rate(name)) for c, part in parts.items()]
    rows += [
        metric_row(_words(name), metric, is_rate=_is_rate(name))
        for name, metric in summary.metrics.items()
        if name not in _BY_COMPLEXITY and metric.value is not None
    ]
    console.table(
        f"{counted(summary.n_episodes, 'episode')} of {counted(summary.n_tasks, 'task')}", COLUMNS, rows
    )
    if summary.unscored:
        console.say(
            f"{summary.unscored} of {summary.n_episodes} episodes are unscored (infrastructure failed): the "
            "first line counts them as failed, no other has them"
        )


def print_cassette(counts: JsonObject, console: Console) -> None:
    """One line on what a cassette did (`Cassette.take_counts`)."""
    parts = [f"{counts[name]} {name}" for name in ("replayed", "live", "recorded")]
    parts += [f"{counts[name]} {name}" for name in ("restored", "refused", "volatile") if counts[name]]
    parts += [f"{count} missed ({reason.replace('_', ' ')})" for reason, count in counts["misses"].items()]
    console.say(f"cassette  {counts['mode']}: {', '.join(parts)}")


def metric_row(name: str, metric: Metric, *, is_rate: bool, signed: bool = False) -> tuple[str, ...]:
    """Cells for `COLUMNS`: rates in percent; a dash for what there is not."""
    scale, digits, unit = (100.0, 1, " %") if is_rate else (1.0, 3, "")

    def number(value: float) -> str:
        return f"{value * scale:{'+' if signed else ''}.{digits}f}"

    value = "-" if metric.value is None else number(metric.value) + unit
    interval = "-"
    if metric.ci_low is not None and metric.ci_high is not None:
        interval = f"{number(metric.ci_low)} to {number(metric.ci_high)}"
    return name, value, interval, str(metric.n)


def _is_rate(name: str) -> bool:
    return name in RATES or name.startswith("pass")


def _words(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))
