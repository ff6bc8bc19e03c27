"""Tasks from templates: sampled state first, question second, and nothing kept that was not executed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any, Protocol, TypeVar

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.datasets import DiskList, text_digest
from mcpagent.synth.explore.candidates import telling_call
from mcpagent.synth.tasks.inspect import answer_facts
from mcpagent.synth.tasks.prove import ground
from mcpagent.synth.tasks.record import Candidate, ToolSelection, build_task, draft_task
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import GENERATION_STAGES, RejectCode, Rejection, by_stage, yield_table
from mcpagent.synth.templates.pools import SPLITS, list_entities, split_entities
from mcpagent.synth.templates.template import Template, TemplateSet
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.languages import takes_language


def abstaining(
    task: Task, tools: Mapping[str, ToolSpec], *, offer: ToolSelection, withheld: list[str]
) -> Task:
    """Return `task` with these tools of the `offer`, whose right answer is none; what would have been called
    stands in `extra_info`."""
    truth, check = task.truth, task.truth.final_answer
    plan = [{"server": s.server, "tool": s.tool, "params": s.params} for s in truth.tool_sequence]
    ground_truth: JsonObject = {
        "task_id": truth.task_id,
        "complexity": truth.complexity,
        "max_turns": truth.max_turns,
        "success": {},
        "tool_sequence": [],
        "final_answer": {"type": "none", **({"form": check.type} if check is not None else {})},
    }
    info = {name: told for name, told in task.extra_info.items() if name not in ("tools", "answer_from")}
    verdicts = {**info["verdicts"], "minimal": "no steps", "withheld_answers": True}
    info |= {"class": "missing_function", "withheld": withheld, "would_call": plan, "verdicts": verdicts}
    question = task.prompt[-1].content
    return build_task(offer, tools, ground_truth, question, data_source=task.data_source, **info)


async def _telling_tool(task: Task, offered: list[ToolSpec], cache: CallCache) -> str | None:
    """An offered tool that gives the answer about one of the slots."""
    facts = answer_facts(task)
    subjects = [value for value in task.extra_info.get("slots", {}).values() if isinstance(value, str)]
    async with cache.session(only_reads=True) as session:
        for spec in offered if facts else ():
            if not spec.annotations.read_only or takes_language(spec):
                continue
            arguments = await telling_call(session, spec, subjects, facts)
            if arguments is not None:
                return f"{spec.dotted}({arguments}) has the answer {facts}"
    return None


_BATCH = 32  # candidates executed at once; fixed, since it takes part in what is kept
_EXAMPLES_KEPT = 3  # of each reason
_MAX_FRUITLESS = 2000  # candidates in a row that gave no task, after which there is none left to find

_C = TypeVar("_C", bound="Keyed")
Progress = Callable[[str, int], None]  # split, tasks that are new


@dataclass(kw_only=True)
class GeneratedData:
    """`tasks` by split; `rejects` counts the candidates that did not become tasks, `examples` says for each
    code what happened in the first of them. `candidates` is how many were drawn, `surplus` how many of them
    were shown to be good after there were enough; `tried` holds digests of their keys (`text_digest`)."""

    entities: Mapping[str, Mapping[str, int]]  # split -> pool -> number of entities
    catalog_hash: str
    tasks: Mapping[str, Sequence[Task]] = field(default_factory=dict)
    rejects: Counter[RejectCode] = field(default_factory=Counter)
    examples: dict[RejectCode, list[str]] = field(default_factory=dict)
    candidates: int = 0
    surplus: int = 0
    executed_calls: int = 0
    tried: set[int] = field(default_factory=set)

    def reject(self, rejection: Rejection) -> None:
        """Count a candidate that was refused."""
        self.rejects[rejection.code] += 1
        texts = self.examples.setdefault(rejection.code, [])
        if len(texts) < _EXAMPLES_KEPT:
            texts.append(rejection.detail)

    def short_of(self, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Return the splits with fewer tasks than were asked for: (made, asked)."""
        made = {split: len(self.tasks.get(split, ())) for split in counts}
        return {split: (made[split], count) for split, count in counts.items() if made[split] < count}

    @property
    def stages(self) -> list[JsonObject]:
        """The yield: what went into each stage and what came out, the last line being what is written."""
        surplus = {"surplus": self.surplus} if self.surplus else {}
        lost = {**by_stage(self.rejects, GENERATION_STAGES), "wanted": surplus}
        return yield_table(self.candidates, lost)


async def generate_dataset(
    pool: ToolProvider,
    templates: TemplateSet,
    *,
    counts: Mapping[str, int],
    seed: int,
    distractors: int | None = None,
    on_progress: Progress | None = None,
    heldout_servers: Collection[str] = (),
) -> GeneratedData:
    """Generate up to `counts[split]` distinct tasks for each split: as many as the templates give with its
    entities, the same for the same seed, templates and servers.

    An entity occurs in one split only, and so does every task. `distractors` None offers the whole catalog
    with each task. Of `heldout_servers` nothing is in another split than `heldout`, half of whose tasks need
    one. Raises UserError if there is not one task.
    """
    cache = CallCache(pool)
    counts = counts_of_sources(counts, heldout_servers)
    offer = ToolSelection(catalog=pool.tools, distractors=distractors, unseen_servers=tuple(heldout_servers))
    seen = unseen = templates
    if heldout_servers:
        seen = templates.for_servers({tool.server for tool in offer.seen.catalog.values()})
        rest = (template for template in templates.templates if template not in seen.templates)
        unseen = replace(templates, templates=tuple(rest))
    if heldout_servers and not (seen.templates and any(template.plan for template in unseen.templates)):
        held = ", ".join(heldout_servers)
        raise UserError(
            f"there are no templates both with and without {held}",
            where="--heldout-server",
            remedy="hold out another server, use --templates full, or add --explore",
        )
    listed = await list_entities(templates, cache)
    entities = split_entities(
        listed,
        seed=seed,
        least=templates.needed,
        splits=counts,
        heldout=listed.keys() - {pool for template in seen.templates for pool in template.slots.values()},
    )
    entities |= {UNSEEN: entities["heldout"]} if heldout_servers else {}
    sources: dict[str, _SplitSource] = {}
    for split in counts:
        of_split = unseen if split == UNSEEN else seen
        if fitting := _fitting(of_split.templates, entities[split]):
            sources[split] = _SplitSource(
                templates=fitting,
                entities=entities[split],
                offer=offer if split == UNSEEN else offer.seen,
                split="heldout" if split == UNSEEN else split,
                seed=seed,
                cache=cache,
            )
    sizes = {split: {p: len(values) for p, values in pools.items()} for split, pools in entities.items()}
    return await fill_splits(
        sources,
        counts,
        entities=sizes,
        catalog_hash=offer.catalog_hash,
        cache=cache,
        on_progress=on_progress,
    )


def _fitting(templates: Sequence[Template], entities: Mapping[str, Sequence[Any]]) -> list[Template]:
    """Return those that the entities of a split are enough for. Those in which nothing is to be called go
    with the others: alone they ask nothing."""
    fitting = [
        template
        for template in templates
        if all(len(entities[pool]) >= needed for pool, needed in template.needed.items())
    ]
    asks_nothing = any(t.plan for t in templates) and not any(t.plan for t in fitting)
    return [] if asks_nothing else fitting


@dataclass(kw_only=True)
class _SplitSource:
    """Candidates of one split, each of which depends on the seed, the split and its index alone."""

    templates: Sequence[Template]
    entities: Mapping[str, Sequence[Any]]
    offer: ToolSelection
    split: str
    seed: int
    cache: CallCache
    index: int = 0

    def next(self) -> Candidate:
        rng = Random(derive_seed(self.seed, self.split, self.index))
        self.index += 1
        template = rng.choices(self.templates, weights=[t.weight for t in self.templates])[0]
        slots: dict[str, Any] = {}
        for pool in sorted(set(template.slots.values())):
            names = [slot for slot, source in template.slots.items() if source == pool]
            # Two slots of one pool never get the same entity: a channel is not posted to itself.
            slots.update(zip(names, rng.sample(self.entities[pool], len(names)), strict=True))
        ordered = {slot: slots[slot] for slot in template.slots}
        ordered |= {name: rule.value(str(slots[rule.of])) for name, rule in template.derived.items()}
        return Candidate(template, ordered, rng.randrange(len(template.prompts)))

    async def make(self, candidate: Candidate) -> Task | Rejection:
        draft = draft_task(candidate, offer=self.offer, split=self.split, seed=self.seed)
        outcome = await ground(draft, self.cache)
        if isinstance(outcome, Task) and candidate.template.withhold:
            outcome = await self._without_tools(outcome, candidate)
        if isinstance(outcome, Rejection):
            return replace(outcome, detail=f"{candidate.template.name}: {outcome.detail}")
        return outcome

    async def _without_tools(self, task: Task, candidate: Candidate) -> Task | Rejection:
        """Return the grounded `task` as one in which nothing should be called; or why that would be wrong:
        another read-only tool that is offered, asked about the same things, gives the answer."""
        withheld = sorted(set(candidate.template.withhold))
        seed = derive_seed(self.seed, "offer", candidate.key)
        tools = self.offer.tools_for(set(), seed=seed, withheld=withheld)
        telling = await _telling_tool(task, list(tools.values()), self.cache)
        if telling is not None:
            return Rejection(RejectCode.STILL_ANSWERABLE, telling)
        return abstaining(task, tools, offer=self.offer, withheld=withheld)


class Keyed(Protocol):
    """A candidate, whose key is that of every candidate that asks for the same."""

    @property
    def key(self) -> str:
        """The key of what the candidate asks for."""
        ...


class TaskSource(Protocol[_C]):
    """Candidates of one split, in a fixed order that the outcomes have no part in."""

    split: str

    def next(self) -> _C | None:
        """Return the next candidate; None if the split had it before."""
        ...

    async def make(self, candidate: _C) -> Task | Rejection:
        """Run it and prove it."""
        ...


UNSEEN = "unseen"  # the held-out tasks that need a server which training does not see


def counts_of_sources(counts: Mapping[str, int], unseen_servers: Collection[str]) -> dict[str, int]:
    """Return how many tasks each source of `fill_splits` gives: half of the held-out ones are of UNSEEN, if
    there are servers that training does not see. Raises UserError for numbers that cannot be."""
    unknown = sorted(set(counts) - set(SPLITS))
    if unknown:
        raise UserError(f"there is no split {unknown[0]!r}", remedy=f"splits are: {', '.join(SPLITS)}")
    for split, count in counts.items():
        if count < 0:
            raise UserError(f"{count} tasks asked for {split}", remedy="counts are 0 or more")
    if not any(counts.values()):
        raise UserError(
            "no tasks asked for", remedy="for example: mcpagent gen-data --train 800 --heldout 200"
        )
    asked = {split: counts[split] for split in SPLITS if counts.get(split)}
    if unseen_servers:
        if (heldout := asked.pop("heldout", 0)) < 2:
            raise UserError(
                f"{heldout} held-out tasks are too few for {', '.join(unseen_servers)} and the other servers",
                where="--heldout-server",
                remedy="ask for more: --heldout 240",
            )
        asked |= {"heldout": heldout // 2, UNSEEN: heldout - heldout // 2}
    return asked


async def fill_splits(
    sources: Mapping[str, TaskSource[_C]],
    counts: Mapping[str, int],
    *,
    entities: Mapping[str, Mapping[str, int]],
    catalog_hash: str,
    cache: CallCache,
    on_progress: Progress | None = None,
) -> GeneratedData:
    """Return up to `counts[source]` proven tasks of each source with the account of how they were found;
    those of UNSEEN follow the other held-out tasks. `entities` are how many things there were to ask about.
    Raises UserError if there is not one task, or none of UNSEEN."""
    data = GeneratedData(entities=entities, catalog_hash=catalog_hash)
    tasks: dict[str, Sequence[Task]] = dict.fromkeys(counts, ())
    for split, source in sources.items():
        tasks[split] = await fill_split(source, counts[split], data, on_progress)
    if not any(tasks.values()):
        raise without_a_task(counts, data)
    if UNSEEN in counts:
        if not (unseen := tasks.pop(UNSEEN)):
            raise without_a_task({UNSEEN: counts[UNSEEN]}, data)
        tasks["heldout"] = DiskList(chain(tasks["heldout"], unseen))
    data.tasks, data.executed_calls = tasks, cache.executed
    return data


async def fill_split(
    source: TaskSource[_C],
    count: int,
    data: GeneratedData,
    on_progress: Progress | None,
) -> Sequence[Task]:
    """Return `count` proven tasks of the source; fewer if it has no more."""
    kept: DiskList[Task] = DiskList()
    fruitless = made = 0
    while made < count:
        before = len(kept)
        batch: list[_C] = []
        while len(batch) < _BATCH and fruitless < _MAX_FRUITLESS:
            candidate = source.next()
            data.candidates += 1
            if candidate is None or (key := text_digest(candidate.key)) in data.tried:
                fruitless += 1
                data.rejects[RejectCode.DUPLICATE] += 1
                continue
            data.tried.add(key)
            batch.append(candidate)
        outcomes = await asyncio.gather(*map(source.make, batch))
        for outcome in outcomes:
            if isinstance(outcome, Task):
                made += 1
                if made <= count:
                    kept.append(outcome)
                fruitless = 0
            else:
                fruitless += 1
                data.reject(outcome)
        if on_progress is not None:
            on_progress(source.split, len(kept) - before)
        if fruitless >= _MAX_FRUITLESS:
            break
    data.surplus += made - len(kept)
    return kept


def without_a_task(counts: Mapping[str, int], data: GeneratedData) -> UserError:
    """Return why there is nothing to write."""
    rejected = ", ".join(f"{code} {n}" for code, n in sorted(data.rejects.items()))
    examples = [f"\n  {code}: {texts[0]}" for code, texts in sorted(data.examples.items())]
    why = f"rejected: {rejected}{''.join(examples)}" if rejected else "no entity has what a question needs"
    asked = ", ".join(f"{split} {count}" for split, count in counts.items() if count)
    return UserError(
        f"no task was made (asked for: {asked}); {why}",
        remedy="let a model write them: mcpagent gen-data --llm --servers mcp.json --batch round-1.jsonl; or "
        "write templates and a pools.yaml for these servers: --templates FOLDER",
    )


def short_note(short: Mapping[str, tuple[int, int]], why: str) -> str:
    """One sentence: which splits have fewer tasks than were asked for (made, asked), and why."""
    parts = [
        f"{split} has {made} of {asked} tasks" + ("" if made else " and no file")
        for split, (made, asked) in short.items()
    ]
    return f"{', '.join(parts)}: {why}"


def why_short(data: GeneratedData) -> str:
    """Return what there was to ask about, for a split that has too few tasks."""
    sizes = data.entities.values()
    if all("facts" in of_split for of_split in sizes):  # explored
        things = sum(of_split["facts"] for of_split in sizes)
        return f"the read-only tools gave {things} things to ask about, each of which belongs to one split"
    tried = {
        split: ", ".join(f"{n} {pool}" for pool, n in data.entities[split].items()) for split in data.tasks
    }
    told = "; ".join(f"{split}: {of_split}" for split, of_split in tried.items())
    return f"the templates give no other task with the entities of a split ({told}); add some to pools.yaml"
