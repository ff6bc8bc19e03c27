"""A dataset that a model writes: many samples at once, what became of each, and the splits of the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcpagent.config.schema import ToolsConfig
from mcpagent.console import Console, counted
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import RunError, UserError
from mcpagent.interrupts import Interrupted
from mcpagent.llm.client import RetryingClient, gather_or_cancel
from mcpagent.llm.contract import FailureReason
from mcpagent.llm.endpoint import Endpoint
from mcpagent.llm.journal import Journal
from mcpagent.synth.generate import DatasetOutput, counted_tasks, write_splits
from mcpagent.synth.llm.draft import DraftFault, DraftStage, FormatCheck
from mcpagent.synth.llm.prompts import PromptBuilder, TaskSettings, observe, unresolved_aliases
from mcpagent.synth.llm.sample import (
    AskSettings,
    Executor,
    SampleOutcome,
    Workshop,
    sample_yield_table,
    split_tasks,
)
from mcpagent.synth.tasks.record import ToolSelection
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import RejectCode
from mcpagent.synth.templates.pools import SplitShares
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.setup import open_tools


def make_dataset_with_model(
    tools: ToolsConfig,
    output: DatasetOutput,
    *,
    settings: TaskSettings,
    asking: AskSettings,
    console: Console,
) -> JsonObject:
    """Start the servers, generate, write the splits that have tasks; the document of `gen-data --llm --json`.
    The counts of `output` are proportions. Raises UserError."""
    started = time.perf_counter()
    try:
        with (
            open_tools(tools, on_note=console.note) as opened,
            console.progress("Samples", total=asking.samples) as advance,
        ):
            if unknown := unresolved_aliases(settings.curriculum, tuple(opened.pool.tools.values())):
                console.note(f"--curriculum: no tool is meant by {', '.join(unknown)}; ignored")
            kept = 0

            def on_progress(outcome: SampleOutcome) -> None:
                nonlocal kept
                kept += outcome.executed is not None
                cost = asking.budget.cost
                spent = "" if cost is None else f", ${cost:.4f}"
                advance(1, note=f"{kept} good, {asking.budget.requests} requests{spent}")

            making = _generated(
                opened.pool, output.counts, settings, asking, on_note=console.note, on_progress=on_progress
            )
            tasks, told = opened.io.run(making)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"{asking.journal} has every answer so far") from interrupt
    tasks = {split: members for split, members in tasks.items() if members}
    paths: Mapping[str, Path] = {}
    if tasks:
        paths = write_splits(tasks, output.folder, servers=output.servers, overwrite=output.overwrite)
    document: JsonObject = {
        **counted_tasks(tasks),
        **told,
        "paths": {split: str(path) for split, path in paths.items()},
        "model": asking.endpoint.model,
        "prompts_sha256": asking.prompts.sha256,
        "journal": str(asking.journal),
        "seed": settings.seed,
        "seconds": round(time.perf_counter() - started, 3),
    }
    empty = {split: count for split, count in output.counts.items() if count and split not in tasks}
    if tasks and empty:
        document["short"] = {split: {"made": 0, "asked": count} for split, count in empty.items()}
        groups = f"the {document['records']} tasks are too few, or share too many entities, to be divided"
        console.note(f"{' and '.join(empty)} got no task and no file: {groups}; ask for more samples")
    return document


def run_description(settings: TaskSettings, asking: AskSettings, catalog_hash: str) -> JsonObject:
    """Return what makes a journal another run's: all that decides what is asked under a key."""
    return {
        "seed": settings.seed,
        "model": asking.endpoint.model,
        "max_output_tokens": asking.max_output_tokens,
        "prompts_sha256": asking.prompts.sha256,
        "catalog_hash": catalog_hash,
        "max_tools": settings.max_tools,
        "max_turns": settings.max_turns,
        "domains": list(settings.domains),
        "complexities": list(settings.complexities),
        "curriculum": [prompt.model_dump(mode="json") for prompt in settings.curriculum],
        "distractors": settings.distractors,
        "votes": asking.votes,
        "repairs": asking.repairs,
        "may_write": settings.may_write,
    }


async def _generated(
    pool: ToolProvider,
    counts: Mapping[str, int],
    settings: TaskSettings,
    asking: AskSettings,
    *,
    on_note: Callable[[str], None],
    on_progress: Callable[[SampleOutcome], None],
) -> tuple[Mapping[str, Sequence[Task]], JsonObject]:
    """Make `asking.samples` samples, each a task or a counted reject, the same for the same journal; return
    the tasks by split, each once, and what the document says of the samples and the requests. The `counts` of
    the splits are proportions, and each split with a count has a task if there are enough.

    Raises UserError if no request can succeed, and if no tool may be called.
    """
    offer = ToolSelection(catalog=pool.tools, distractors=settings.distractors)
    usable = {t.dotted: t for t in pool.tools.values() if settings.may_write or t.annotations.read_only}
    if not usable:
        raise UserError(
            "no tool says that it only reads",
            remedy="name those that do: --read-only SERVER.TOOL,...; or let plans change something: "
            "--allow-writes",
        )
    prompt_builder = PromptBuilder(
        prompts=asking.prompts,
        usable=tuple(usable.values()),
        observations=await observe(CallCache(pool), usable.values()),
        settings=settings,
    )
    executor = Executor(pool)
    provenance = {
        "template": "llm",
        "model": asking.endpoint.model,
        "prompts_sha256": asking.prompts.sha256,
        "seed": settings.seed,
        "catalog_hash": offer.catalog_hash,
    }
    run = run_description(settings, asking, offer.catalog_hash)
    opened = Journal(asking.journal, run=run, retry_failed=asking.retry_failed)
    with closing(opened) as journal:
        journal.charge(asking.budget)
        recorded = journal.answered_count
        async with aclosing(Endpoint(asking.endpoint, on_note=on_note)) as endpoint:
            workshop = Workshop(
                client=RetryingClient(endpoint, budget=asking.budget, journal=journal),
                journal=journal,
                asking=asking,
                check=FormatCheck(usable=usable, offer=offer, settings=settings),
                executor=executor,
                provenance=provenance,
            )
            outcomes = await _all(workshop, prompt_builder, on_progress)
    distinct = _without_duplicates(outcomes)
    kept = [outcome.executed for outcome in distinct if outcome.executed is not None]
    total = sum(counts.values()) or 1
    shares = SplitShares(heldout=counts["heldout"] / total, validation=counts["validation"] / total)
    splits = [split for split, count in counts.items() if count]
    return split_tasks(kept, tools=usable, shares=shares, seed=settings.seed, splits=splits), {
        **sample_yield_table(distinct),
        "failed_requests": journal.failures.as_json(),
        "spend": {**asking.budget.as_json(), "answers_from_journal": recorded},
        "executed_calls": executor.executed_calls,
        "catalog_hash": offer.catalog_hash,
    }


async def _all(
    workshop: Workshop, prompt_builder: PromptBuilder, on_progress: Callable[[SampleOutcome], None]
) -> list[SampleOutcome]:
    """The outcome of each sample, in order. The first error of one ends the others and is raised."""
    outcomes: list[SampleOutcome] = []

    async def work(numbers: Iterator[int]) -> None:
        for number in numbers:
            outcome = await workshop.make(prompt_builder(number))
            outcomes.append(outcome)
            on_progress(outcome)

    samples, at_once = workshop.asking.samples, workshop.asking.endpoint.max_in_flight
    numbers = iter(range(samples))
    await gather_or_cancel(work(numbers) for _ in range(min(at_once, samples)))
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _without_duplicates(outcomes: Sequence[SampleOutcome]) -> list[SampleOutcome]:
    """Of the samples that make the same calls, the first alone."""
    first: dict[str, int] = {}
    result: list[SampleOutcome] = []
    for outcome in outcomes:
        if outcome.executed is not None:
            calls = [[c["server"], c["tool"], c["arguments"]] for c in outcome.executed.calls]
            original = first.setdefault(json.dumps(calls, sort_keys=True), outcome.number)
            if original != outcome.number:
                detail = f"sample {outcome.number} makes the calls of sample {original}"
                fault = DraftFault(DraftStage.DISTINCT, RejectCode.DUPLICATE, detail)
                outcome = replace(outcome, executed=None, faults=(*outcome.faults, fault))
        result.append(outcome)
    return result


def no_task(document: Mapping[str, Any]) -> RunError:
    """Return why there is not one task: what the service did, and at which checks the finished samples
    failed."""
    failed, rejects = document["failed_requests"], document["rejects"]
    requests, caps = document["spend"]["requests"], option_names(document["stopped_by"])
    if document["finished"]:
        message = f"none of {document['finished']} finished samples became a task ({_counted(rejects)})"
    else:
        message = f"no sample was finished in {counted(requests, 'request')}"
    if caps:
        message += f", and {caps} is reached"
    if failed["total"]:
        message += f"; {failed_requests(document)}"
    remedy = _remedy_of(failed["reasons"], caps=caps)
    account = {name: document[name] for name in _ACCOUNT}
    return RunError(message, where=document["journal"], remedy=remedy, details=account)


def failed_requests(document: Mapping[str, Any]) -> str:
    """Return what became of the requests without an answer: counts by reason, each with what was said
    first."""
    failed, requests = document["failed_requests"], document["spend"]["requests"]
    told = ", ".join(
        f"{reason} {n} ({failed['examples'][reason]:.120})" for reason, n in failed["reasons"].items()
    )
    return f"{failed['total']} of {requests} requests had no answer: {told}"


def requests_lost(document: Mapping[str, Any]) -> str | None:
    """Return what was given up for what the service did, and what to change; None if nothing was."""
    lost = {reason: n for reason, n in document["rejects"].items() if reason in set(FailureReason)}
    return f"given up: {_counted(lost)}; {_remedy_of(lost, has_tasks=True)}" if lost else None


def _remedy_of(reasons: Mapping[str, int], *, caps: str = "", has_tasks: bool = False) -> str:
    """What to change before the same command is run again, by what the service did."""
    changes: list[str] = []
    if FailureReason.RATE_LIMITED in reasons:
        changes.append("ask more slowly with --set api.calls_per_minute=N")
    if FailureReason.TIMED_OUT in reasons:
        changes.append("give an answer more time with --set api.timeout_s=S")
    if reasons.keys() & {FailureReason.SERVER_ERROR, FailureReason.CONNECTION, FailureReason.BAD_BODY}:
        changes.append("wait until the service is well")
    if FailureReason.BAD_REQUEST in reasons:
        changes.append("check --model and --max-output-tokens against what the service says")
    if caps:
        changes.append(f"raise {caps}")
    if not changes:
        return "the yield table says at which stage they failed; the journal holds every answer"
    again = "--retry-failed --overwrite" if has_tasks else "--retry-failed"
    return f"{' and '.join(changes)}; {again} asks again what was given up, and nothing that was answered"


def option_names(names: Sequence[str]) -> str:
    """Return the settings of these caps."""
    return " and ".join(f"api.{name}" for name in names)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


_ACCOUNT = ("finished", "unfinished", "stopped_by", "rejects", "failed_requests", "spend")  # of an error
