"""What became of every sample: the yield table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.synth.llm.execute import Executed
from mcpagent.synth.llm.faults import Fault, Stage

_EXAMPLES_KEPT = 3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One sample. `faults` has one for each attempt that failed; the last decides, where there is no
    `executed`. `cap` names the cap that ended the sample before it had an outcome."""

    number: int
    executed: Executed | None = None
    faults: tuple[Fault, ...] = ()
    cap: str | None = None


def yield_table(outcomes: Sequence[Outcome]) -> JsonObject:
    """`stages` by the last word on each finished sample: what enters a stage leaves it or is among its
    rejects, and the first takes in all that are finished. `attempts` counts the drafts that failed,
    fixed or not."""
    finished = [outcome for outcome in outcomes if outcome.cap is None]
    last = [outcome.faults[-1] for outcome in finished if outcome.executed is None]
    stages: list[JsonObject] = []
    left = len(finished)
    for stage in Stage:
        rejects = Counter(fault.code for fault in last if fault.stage is stage)
        out = left - rejects.total()
        stages.append({"name": stage.value, "in": left, "out": out, "rejects": _sorted(rejects)})
        left = out
    kept = [outcome for outcome in finished if outcome.executed is not None]
    drafts = [fault for outcome in outcomes for fault in outcome.faults if fault.stage is not Stage.DISTINCT]
    return {
        "samples": len(outcomes),
        "finished": len(finished),
        "unfinished": len(outcomes) - len(finished),
        "stopped_by": sorted({outcome.cap for outcome in outcomes if outcome.cap is not None}),
        "stages": stages,
        "rejects": _sorted(Counter(fault.code for fault in last)),
        "reject_examples": _examples(last),
        "repaired": sum(bool(outcome.faults) for outcome in kept),
        "attempts": {"failed": len(drafts), "reasons": _sorted(Counter(fault.code for fault in drafts))},
    }


def _examples(faults: Sequence[Fault]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fault in sorted(faults, key=lambda fault: fault.code):
        texts = found.setdefault(fault.code, [])
        if len(texts) < _EXAMPLES_KEPT:
            texts.append(fault.detail)
    return found


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
