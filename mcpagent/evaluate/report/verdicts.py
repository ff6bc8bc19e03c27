"""One verdict for each success criterion of a run: the rule, the evidence, pass or fail or not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from mcpagent.core.records import Record
from mcpagent.errors import UserError
from mcpagent.evaluate.baseline import better_baseline, gain
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.intervals import unpaired_difference
from mcpagent.evaluate.report.numbers import change, number, p_value, percent, rate
from mcpagent.evaluate.report.run_data import AFTER, BEFORE, SAMPLED, RunView
from mcpagent.evaluate.summary import EvalResult

COMPLETION = 0.5  # share of tasks
KL_LIMIT = 0.5  # nats per token
MEMORY_GROWTH = 0.05  # of the fitted start of the second half
MEMORY_SLACK_MIB = 64.0  # steps differ by so much, because their episodes differ in length
UNSCORED_SHARE = 0.05  # of the episodes of any one step or evaluation
MIN_STEPS = 6  # two steps in each third

Outcome = Literal["pass", "fail", "not measured"]


class Verdict(Record):
    """The verdict on one criterion: `rule` is the question, `evidence` the numbers behind the answer."""

    name: str
    outcome: Outcome
    evidence: str
    rule: str


# Whether a criterion holds, None if that was not measured, and the numbers behind it.
Finding = tuple[bool | None, str]


def judge(run: RunView) -> list[Verdict]:
    """Return a verdict on every criterion, in the order of the page."""
    how = "Sampled" if run.suffix else "Greedy"
    criteria: list[tuple[str, Callable[[RunView], Finding], str]] = [
        (
            "More than half of the tasks completed",
            _completion,
            f"{how} success on {run.split} tasks, unscored episodes counted as failed: the whole 95% "
            f"interval lies above {COMPLETION:.0%}.",
        ),
        (
            "Better than before training",
            _improvement,
            f"{how} success after minus before, paired by task: the whole 95% interval lies above zero.",
        ),
        (
            "Nothing got worse",
            _nothing_worse,
            "Success after minus before, paired by task, of all tasks and of each complexity, class, server, "
            "and servers that training has seen and has not: none is below zero with p < 0.05, corrected for "
            "their number (Holm); greedy and sampled.",
        ),
        (
            "Reward rising",
            _reward_rising,
            "Mean reward of the last third of the steps minus that of the first third: the whole 95% "
            "interval lies above zero (steps resampled within each third).",
        ),
        (
            "KL bounded",
            _kl_bounded,
            f"KL to the reference stays at or below {kl_limit(run):g} nats per token at every step "
            f"({KL_LIMIT:g}, or twice grpo.target_kl if that is more).",
        ),
        (
            "Memory flat",
            _memory_flat,
            "A straight line through the resident memory of the second half of the steps rises by less than "
            f"{MEMORY_GROWTH:.0%}, or {MEMORY_SLACK_MIB:.0f} MiB if that is more.",
        ),
        (
            "Few unscored episodes",
            _unscored,
            f"No step and no evaluation lost more than {UNSCORED_SHARE:.0%} of its episodes to "
            "infrastructure.",
        ),
        (
            "Every tool result came over MCP",
            _over_mcp,
            "Every result of a server that stamps its results carries the server's nonce in its _meta. "
            "Results that a cassette replayed are not evidence.",
        ),
    ]
    if better_baseline(run.evaluations, run.suffix) is not None:
        criteria.insert(
            2,
            (
                "Better than the untrained model",
                _gain,
                f"{how} success minus that of the untrained model, with none or with two shots, whichever is "
                "better, paired by task: the whole 95% interval lies above zero.",
            ),
        )
    outcomes: dict[bool | None, Outcome] = {True: "pass", False: "fail", None: "not measured"}
    verdicts: list[Verdict] = []
    for name, criterion, rule in criteria:
        holds, evidence = criterion(run)
        verdicts.append(Verdict(name=name, outcome=outcomes[holds], evidence=evidence, rule=rule))
    return verdicts


def _completion(run: RunView) -> Finding:
    evaluation = run.evaluations.get(AFTER + run.suffix)
    metric = evaluation.metrics["task_success"] if evaluation else None
    if metric is None or metric.value is None or metric.ci_low is None:
        return None, _no_evaluation(run, "of the trained model")
    return metric.ci_low > COMPLETION, f"{rate(metric)} of {metric.n} tasks"


def _improvement(run: RunView) -> Finding:
    before, after = (run.evaluations.get(side + run.suffix) for side in (BEFORE, AFTER))
    comparison = compare_or_none(before, after)
    if comparison is None:
        return None, _no_evaluation(run, "before and after on the same tasks")
    return _of_comparison(comparison)


def _gain(run: RunView) -> Finding:
    gained = gain(run.evaluations, AFTER, run.suffix)
    if gained is None:
        return None, _no_evaluation(run, "of the trained model")
    holds, evidence = _of_comparison(gained[1])
    return holds, f"over {gained[0].replace('_', ' ')}: {evidence}"


def _nothing_worse(run: RunView) -> Finding:
    pairs = {
        how: compare_or_none(run.evaluations.get(BEFORE + suffix), run.evaluations.get(AFTER + suffix))
        for how, suffix in (("greedy", ""), ("sampled", SAMPLED))
    }
    told = {how: comparison for how, comparison in pairs.items() if comparison is not None}
    return nothing_worse(told) if told else (None, _no_evaluation(run, "before and after on the same tasks"))


def nothing_worse(comparisons: Mapping[str, Comparison]) -> Finding:
    """Return whether b is worse in no guarded part in any of the comparisons, by how they were sampled."""
    findings: list[Finding] = []
    for how, one in comparisons.items():
        tested = [part for part in one.parts if part.adjusted_p is not None]
        fallen = [
            f"{part.name} {change(part.difference, ' points')}, p {p_value(part.adjusted_p)}"
            for part in tested
            if part.has_fallen
        ]
        if one.why_no_verdict is not None:
            finding = None, f"a before, b after: {one.why_no_verdict}"
        elif not one.parts:
            finding = None, "the evaluations do not say the classes of their tasks: evaluate again"
        else:
            finding = not fallen, "; ".join(fallen) or f"none of {len(tested)} parts fell"
        findings.append((finding[0], f"{how}: {finding[1]}"))
    outcomes = [outcome for outcome, _ in findings]
    holds = False if False in outcomes else None if None in outcomes else True
    return holds, "; ".join(text for _, text in findings)


def _of_comparison(comparison: Comparison) -> Finding:
    if comparison.why_no_verdict is not None:
        return None, f"a before, b after: {comparison.why_no_verdict}"
    difference = comparison.difference
    if difference.value is None or difference.ci_low is None or difference.ci_high is None:
        return None, "too few tasks for an interval"
    tasks = f"{comparison.wins} tasks won, {comparison.losses} lost, {comparison.ties} unchanged"
    return difference.ci_low > 0, f"{change(difference, ' points')}; {tasks}"


def _reward_rising(run: RunView) -> Finding:
    rewards = run.values("reward_mean")
    if len(rewards) < MIN_STEPS:
        return None, f"{len(rewards)} steps with a reward, {MIN_STEPS} needed"
    third = len(rewards) // 3
    early, late = rewards[:third], rewards[-third:]
    risen = unpaired_difference(early, late, seed=0)
    assert risen.value is not None and risen.ci_low is not None and risen.ci_high is not None
    evidence = (
        f"{np.mean(early):.3f} → {np.mean(late):.3f}, a change of {number(risen.value, signed=True)} "
        f"[{number(risen.ci_low, signed=True)}, {number(risen.ci_high, signed=True)}]"
    )
    return risen.ci_low > 0, evidence


def kl_limit(run: RunView) -> float:
    """Return the nats per token that no step may pass: `KL_LIMIT`, or twice `grpo.target_kl` if that is
    more."""
    grpo = run.config.get("grpo")
    target = grpo.get("target_kl") if isinstance(grpo, dict) else None
    return max(KL_LIMIT, 2 * target) if isinstance(target, int | float) else KL_LIMIT


def _kl_bounded(run: RunView) -> Finding:
    values = run.values("kl")
    if not values:
        return None, "no step reported a KL"
    evidence = f"highest {max(values):.3f}, last {values[-1]:.3f} over {len(values)} steps"
    return max(values) <= kl_limit(run), evidence


def _memory_flat(run: RunView) -> Finding:
    values = run.values("rss_mb")
    half = np.array(values[len(values) // 2 :])
    if len(values) < MIN_STEPS:
        return None, f"{len(values)} steps with memory, {MIN_STEPS} needed"
    slope, start = np.polyfit(np.arange(len(half)), half, 1)
    risen = float(slope) * (len(half) - 1)
    evidence = (
        f"{percent(risen / float(start), signed=True)} ({risen:+,.0f} MiB) over the last {len(half)} steps; "
        f"peak {max(values):,.0f} MiB"
    )
    return risen < max(MEMORY_GROWTH * float(start), MEMORY_SLACK_MIB), evidence


def _unscored(run: RunView) -> Finding:
    counts = [
        (lost, done, f"step {row['step']}")
        for row, lost, done in zip(run.steps, run.series("unscored"), run.series("episodes"), strict=True)
        if lost is not None and done
    ]
    evaluations = {**run.validations, **run.evaluations}
    counts += [(float(e.unscored), float(e.n_episodes), n) for n, e in evaluations.items() if e.n_episodes]
    if not counts:
        return None, "no step and no evaluation counted its episodes"
    lost, done = sum(c[0] for c in counts), sum(c[1] for c in counts)
    worst = max(counts, key=lambda c: c[0] / c[1])
    evidence = f"{lost:,.0f} of {done:,.0f} episodes"
    if lost:
        evidence += f"; the worst was {worst[2]} with {worst[0]:,.0f} of {worst[1]:,.0f}"
    return worst[0] / worst[1] <= UNSCORED_SHARE, evidence


def _over_mcp(run: RunView) -> Finding:
    nonces = run.nonces
    stamping = {server for server, count in nonces.stamped.items() if count}
    silent = sorted(nonces.results.keys() - stamping)
    replayed = nonces.replayed.total()
    if replayed and not nonces.results:
        return None, f"all {replayed:,} results were replayed from a cassette"
    if not nonces.results:
        return None, "no stored trajectory holds a tool result"
    if not stamping:
        return None, f"no server stamps its results ({', '.join(silent)})"
    results, stamped = sum(nonces.results[s] for s in stamping), nonces.stamped.total()
    evidence = f"{stamped:,} of {results:,} results stamped, in {nonces.trajectories:,} stored trajectories"
    if replayed:
        evidence += f"; {replayed:,} more replayed from a cassette"
    if silent:
        evidence += f"; without stamps: {', '.join(silent)}"
    return stamped == results, evidence


def compare_or_none(before: EvalResult | None, after: EvalResult | None) -> Comparison | None:
    """Return `compare`, or None if one is missing or the two share no task."""
    if before is None or after is None:
        return None
    try:
        return compare(before, after)
    except UserError:
        return None


def _no_evaluation(run: RunView, which: str) -> str:
    return (
        f"no evaluation {which} is stored: mcpagent eval checkpoint {run.path} --data FILE makes one after, "
        f"{run.path}@0 one before"
    )
