"""A dataset that a model writes: many samples at once, what became of each, and the splits of the rest."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mcpagent.config.schema import ToolsConfig
from mcpagent.console import Console, counted
from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.core.tasks import Task
from mcpagent.errors import RunError, UserError
from mcpagent.interrupts import Interrupted
from mcpagent.llm.batch import BatchClient
from mcpagent.llm.client import RetryingClient, gather_or_cancel
from mcpagent.llm.contract import FailureReason
from mcpagent.llm.endpoint import Endpoint
from mcpagent.llm.journal import Journal
from mcpagent.synth.generate import DatasetOutput, counted_tasks, write_splits
from mcpagent.synth.llm.draft import DraftFault, DraftStage, FormatCheck
from mcpagent.synth.llm.prompts import (
    Observation,
    PromptBuilder,
    TaskSettings,
    observe,
)
from mcpagent.synth.llm.sample import (
    AskSettings,
    Executor,
    SampleOutcome,
    Workshop,
    sample_yield_table,
    split_tasks,
)
from mcpagent.synth.tasks.inspect import user_text
from mcpagent.synth.tasks.record import ToolSelection
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import RejectCode
from mcpagent.synth.templates.pools import SplitShares
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.setup import open_tools

_BLOCK = 40  # samples that are asked for at once


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
    waits = "waiting" in told  # for answers: what is not whole is not written
    tasks = {split: members for split, members in tasks.items() if members and not waits}
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
        "distractors": settings.distractors,
        "repairs": asking.repairs,
        "may_write": settings.may_write,
        **({"heldout_servers": [*settings.heldout_servers]} if settings.heldout_servers else {}),
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
    offer = ToolSelection(
        catalog=pool.tools, distractors=settings.distractors, unseen_servers=settings.heldout_servers
    )
    _ = offer.seen  # an unknown server is refused before any request
    usable = {t.dotted: t for t in pool.tools.values() if settings.may_write or t.annotations.read_only}
    if not usable:
        raise UserError(
            "no tool says that it only reads",
            remedy="name those that do: --read-only SERVER.TOOL,...; or let plans change something: "
            "--allow-writes",
        )
    others = tuple(tool for tool in pool.tools.values() if tool.dotted not in usable)
    if others:
        names = ", ".join(tool.dotted for tool in others)
        on_note(f"offered, but in no plan, since they do not say that they only read: {names} (--read-only)")
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
        prompt_builder = PromptBuilder(
            prompts=asking.prompts,
            usable=tuple(usable.values()),
            others=others,
            observations=await _observed(pool, journal, seed=settings.seed),
            settings=settings,
        )
        async with _client(asking, journal, on_note=on_note) as client:
            workshop = Workshop(
                client=client,
                journal=journal,
                asking=asking,
                check=FormatCheck(usable=usable, offer=offer, settings=settings),
                executor=executor,
                prompt_builder=prompt_builder,
                provenance=provenance,
            )
            outcomes = await _all(workshop, on_progress)
        waiting = 0
        if asking.batch and isinstance(client, BatchClient) and client.waiting:
            waiting = client.write(asking.batch)
    distinct = _without_duplicates(outcomes)
    kept = [outcome.executed for outcome in distinct if outcome.executed is not None]
    total = sum(counts.values()) or 1
    shares = SplitShares(heldout=counts["heldout"] / total, validation=counts["validation"] / total)
    splits = [split for split, count in counts.items() if count]
    return split_tasks(kept, tools=usable, shares=shares, seed=settings.seed, splits=splits), {
        **sample_yield_table(distinct),
        "failed_requests": journal.failures,
        "spend": {**asking.budget.as_json(), "answers_from_journal": recorded},
        "executed_calls": executor.executed_calls,
        **(_batched(asking.batch, waiting, prompt_builder) if asking.batch and waiting else {}),
        "catalog_hash": offer.catalog_hash,
    }


@asynccontextmanager
async def _client(
    asking: AskSettings, journal: Journal, *, on_note: Callable[[str], None]
) -> AsyncIterator[RetryingClient | BatchClient]:
    """Yield whom the samples ask: the endpoint, or a batch that is given the answers that have come."""
    if asking.batch is None:
        async with aclosing(Endpoint(asking.endpoint, on_note=on_note)) as endpoint:
            yield RetryingClient(endpoint, budget=asking.budget, journal=journal)
        return
    batch = BatchClient(asking.endpoint.model, journal=journal)
    if asking.answers is not None:
        batch.take(asking.answers, on_note=on_note)
    yield batch


def _batched(path: Path, waiting: int, told: PromptBuilder) -> JsonObject:
    """Return what the document says of a batch: the file, and what it tells of the servers."""
    servers = sorted({tool.server for tool in told.usable})
    shown = {"tools": len(told.usable), "servers": servers, "results": len(told.observations)}
    return {"waiting": waiting, "batch": str(path), "shown": shown}


async def _observed(pool: ToolProvider, journal: Journal, *, seed: int) -> tuple[Observation, ...]:
    """Return what the model is shown of the tools: what the first run has seen, for all runs after it."""
    kept = journal.executed("observed")
    if kept is None:
        seen = await observe(CallCache(pool), seed=seed)
        kept = {"seen": SECRETS.value([asdict(each) for each in seen])}
        journal.keep_executed("observed", kept)
    return tuple(Observation(**each) for each in kept["seen"])


async def _all(workshop: Workshop, on_progress: Callable[[SampleOutcome], None]) -> list[SampleOutcome]:
    """The outcome of each sample, in order, block by block: each block is told the questions of those before,
    and none begins after a cap, so that what is asked does not depend on when an answer came. The first
    error of one ends the others and is raised."""
    outcomes: list[SampleOutcome] = []

    async def work(workshop: Workshop, numbers: Iterator[int]) -> None:
        for number in numbers:
            outcome = await workshop.make(number)
            outcomes.append(outcome)
            on_progress(outcome)

    samples, at_once = workshop.asking.samples, workshop.asking.endpoint.max_in_flight
    size = samples if workshop.asking.batch else _BLOCK  # each block of a batch would be a round more
    for start in range(0, samples, size):
        block = range(start, min(start + size, samples))
        done = sorted(outcomes, key=lambda outcome: outcome.number)
        questions = [user_text(outcome.executed.task) for outcome in done if outcome.executed]
        told = replace(workshop, prompt_builder=replace(workshop.prompt_builder, questions=questions))
        numbers = iter(block)
        await gather_or_cancel(work(told, numbers) for _ in range(min(at_once, len(block))))
        if caps := [outcome.cap for outcome in outcomes if outcome.cap]:
            later = range(block.stop, samples)
            outcomes += [SampleOutcome(number=number, cap=caps[0]) for number in later]
            break
    return sorted(outcomes, key=lambda outcome: outcome.number)


def _without_duplicates(outcomes: Sequence[SampleOutcome]) -> list[SampleOutcome]:
    """Keep only the first of the samples that make the same calls."""
    first: dict[str, int] = {}
    result: list[SampleOutcome] = []
    for outcome in outcomes:
        if outcome.executed is not None:
            task = outcome.executed.task
            calls = [[c["server"], c["tool"], c["arguments"]] for c in outcome.executed.calls]
            check = task.truth.final_answer  # the same calls may answer two questions
            asked = [calls, None if check is None else check.value] if calls else user_text(task)
            original = first.setdefault(json.dumps(asked, sort_keys=True), outcome.number)
            if original != outcome.number:
                detail = f"sample {outcome.number} makes the calls of sample {original} for the same answer"
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
    """Return what to change before the same command is run again, by what the service did."""
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
