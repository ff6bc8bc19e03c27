"""BFCL's verdict on an episode of an imported task, from what its servers stamped on the results.

It needs neither BFCL nor a server, so that stored trajectories can be judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.core.tasks import GroundTruth, Task
from mcpagent.reward.record import EpisodeRecord, RecordedCall
from mcpagent.servers.bfcl.names import RESULT_META_KEY, STATE_META_KEY


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`fault` is why the episode fails, None where it holds; `user_turn` is where. `is_quiet`: nothing was
    called in a user turn in which no call is right (BFCL has a second checker for that)."""

    fault: str | None = None
    user_turn: int | None = None
    is_quiet: bool = True

    @property
    def is_valid(self) -> bool:
        return self.fault is None


def verdict(task: Task, record: EpisodeRecord) -> Verdict:
    """After every user turn that has right calls: something was called in it, the public state of every
    backend is what the right calls lead to, and each of their results is among all results so far, in any
    order. What else was called does not matter. Raises ValueError for a task that was not imported."""
    expected = _expected(task.truth)
    by_turn = [[c for c in record.calls if c.user_turn == n] for n in range(len(expected["turns"]))]
    states, results = dict(expected["initial"]), Counter[str]()
    found: Verdict | None = None
    is_quiet = True
    for user_turn, (turn, calls) in enumerate(zip(expected["turns"], by_turn, strict=True)):
        _take_in(calls, states, results)
        wanted = Counter(digest for digests in turn["results"].values() for digest in digests)
        if not wanted:
            is_quiet = is_quiet and not calls
            continue
        fault = _fault(calls, states, turn["states"], results, wanted)
        if fault is not None and found is None:
            found = Verdict(fault=fault, user_turn=user_turn)
    return Verdict(
        fault=found.fault if found else None, user_turn=found.user_turn if found else None, is_quiet=is_quiet
    )


def _expected(truth: GroundTruth) -> dict[str, list]:
    expected = (truth.model_extra or {}).get("bfcl")
    if expected is None:
        raise ValueError(f"task {truth.task_id} was not imported from BFCL: ground_truth.bfcl is missing")
    return expected


def _take_in(calls: Sequence[RecordedCall], states: dict[str, str], results: Counter[str]) -> None:
    """Follow the calls; one that reached no backend changed nothing and has no result that could count."""
    for made in calls:
        if STATE_META_KEY in made.result.meta:
            states[made.call.server] = made.result.meta[STATE_META_KEY]
            results[made.result.meta[RESULT_META_KEY]] += 1


def _fault(
    calls: Sequence[RecordedCall],
    states: dict[str, str],
    right_states: dict[str, str],
    results: Counter[str],
    wanted: Counter[str],
) -> str | None:
    if not calls:
        return "nothing was called"
    differing = sorted(name for name, state in right_states.items() if states[name] != state)
    if differing:
        return f"the state of {', '.join(differing)} differs"
    if wanted - results:
        return f"{(wanted - results).total()} results are missing"
    return None
