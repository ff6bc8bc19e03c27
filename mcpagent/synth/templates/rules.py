"""Tasks from templates: sampled state first, question second, and nothing kept that was not executed."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import StopReason
from mcpagent.errors import UserError
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.storage.datasets import DiskList, task_record, text_digest
from mcpagent.synth.failures import Variation
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.prove import ground, wrong_abstentions
from mcpagent.synth.tasks.record import Candidate, Draw, ToolSelection, draft_task, system_message
from mcpagent.synth.tasks.run import CallCache, score
from mcpagent.synth.tasks.stages import GENERATION_STAGES, RejectCode, Rejection, RejectLog, yield_table
from mcpagent.synth.templates.pools import SPLITS, SplitShares, list_entities, split_entities
from mcpagent.synth.templates.template import TemplateSet
from mcpagent.tools.contract import ToolProvider


async def without_tools(
    task: Task, candidate: Candidate, *, offer: ToolSelection, cache: CallCache
) -> Task | Rejection:
    """The grounded `task` as one in which nothing should be called; or why that would be wrong: another
    read-only tool that is offered, asked about the same things, gives the answer."""
    withheld = set(candidate.template.withhold)
    tools = offer.tools_for(
        set(), seed=derive_seed(task.extra_info["seed"], "offer", candidate.key), withheld=withheld
    )
    telling = await _telling_tool(task, list(tools.values()), cache)
    if telling is not None:
        return Rejection(RejectCode.STILL_ANSWERABLE, telling)
    return abstaining(task, tools, withheld=sorted(withheld), refusal=candidate.template.refusal)


def abstaining(
    task: Task, tools: dict[str, ToolSpec], *, withheld: list[str], refusal: str
) -> Task | Rejection:
    """`task` with these tools and nothing to call, or why no check could judge it; what would have been
    called stands in `extra_info`. A right answer refuses, and says none of the facts that were asked for."""
    return _told_apart(_abstaining(task, tools, withheld=withheld, refusal=refusal))


def _told_apart(task: Task) -> Task | Rejection:
    """The task, if its check accepts the refusal and none of the wrong answers."""
    for answer, is_right in (
        (task.truth.reference_answer, True),
        *((a, False) for a in wrong_abstentions(task)),
    ):
        record = EpisodeRecord(
            turns=(RecordedTurn(user_turn=0),), final_answer=answer, stop_reason=StopReason.ANSWERED
        )
        if (score(task, record)["success"] == 1.0) is not is_right:
            code = RejectCode.GOLD_FAILS if is_right else RejectCode.WRONG_ANSWER_PASSES
            return Rejection(code, repr(answer))
    return task


def _abstaining(task: Task, tools: dict[str, ToolSpec], *, withheld: list[str], refusal: str) -> Task:
    truth = task.truth
    plan = [{"server": s.server, "tool": s.tool, "params": s.params} for s in truth.tool_sequence]
    ground_truth: JsonObject = {
        "task_id": truth.task_id,
        "complexity": truth.complexity,
        "max_turns": truth.max_turns,
        "success": {},
        "tool_sequence": [],
        "final_answer": {"type": "abstention", "value": "cannot", "without": _facts(task)},
        "reference_answer": refusal,
        "abstain": True,
    }
    info: dict[str, Any] = {**task.extra_info, "tools": [tool.dotted for tool in tools.values()]}
    info.pop("answer_from", None)
    verdicts = {**info["verdicts"], "no_op": "calling fails", "minimal": "no steps", "withheld_answers": True}
    info |= {"class": "missing_function", "withheld": withheld, "would_call": plan, "verdicts": verdicts}
    return task.model_copy(
        update={
            "prompt": (Message(role="system", content=system_message(tools)), task.prompt[-1]),
            "reward_spec": RewardSpec(ground_truth=GroundTruth.model_validate(ground_truth)),
            "extra_info": info,
        }
    )


async def _telling_tool(task: Task, offered: list[ToolSpec], cache: CallCache) -> str | None:
    """An offered tool with one required text parameter that gives the answer about one of the slots."""
    facts = _facts(task)
    if not facts:
        return None
    subjects = [value for value in task.extra_info.get("slots", {}).values() if isinstance(value, str)]
    async with cache.session() as session:
        for spec in offered:
            name = _only_text_parameter(spec)
            if name is None or not spec.annotations.read_only:
                continue
            for subject in subjects:
                result = await session.call(server=spec.server, tool=spec.name, arguments={name: subject})
                if not result.is_error and all(stands_in(fact, result.content) for fact in facts):
                    return f"{spec.dotted}({name}={subject!r}) has the answer {facts}"
    return None


def _facts(task: Task) -> list[Any]:
    """What the answer of a solvable task has to say."""
    check = task.truth.final_answer
    if check is None or check.type not in ("number", "must_include", "string"):
        return []
    return list(check.value) if isinstance(check.value, list | tuple) else [check.value]


def _only_text_parameter(spec: ToolSpec) -> str | None:
    required = spec.input_schema.get("required", ())
    if len(required) != 1:
        return None
    kind = spec.input_schema.get("properties", {}).get(required[0], {}).get("type")
    return required[0] if kind == "string" and required[0] != "code" else None


_BATCH = 32  # candidates executed at once; fixed, since it takes part in what is kept
_MAX_FRUITLESS = 2000  # candidates in a row that gave no task, after which there is none left to find
# A shard has to go at least as far as all of them together would, whose batches are others.
_MAX_FRUITLESS_OF_SHARD = 3 * _MAX_FRUITLESS

_C = TypeVar("_C", bound="Keyed")
Progress = Callable[[str, int, int], None]  # split, tasks kept so far, tasks asked for


@dataclass(frozen=True, kw_only=True)
class GeneratedData:
    """`tasks` by split; `rejects` counts the candidates that did not become tasks, `examples` says for each
    code what happened in the first of them. `candidates` is how many were drawn, `surplus` how many of them
    were shown to be good after there were enough."""

    tasks: Mapping[str, Sequence[Task]]
    rejects: Mapping[RejectCode, int]
    examples: Mapping[RejectCode, tuple[str, ...]]
    candidates: int
    surplus: int
    entities: Mapping[str, Mapping[str, int]]  # split -> pool -> number of entities
    catalog_hash: str
    executed_calls: int

    @classmethod
    def of(
        cls,
        tasks: Mapping[str, Sequence[Task]],
        tally: Tally,
        *,
        entities: Mapping[str, Mapping[str, int]],
        catalog_hash: str,
        executed_calls: int,
    ) -> GeneratedData:
        """The tasks with the account of how they were found."""
        return cls(
            tasks=tasks,
            rejects=dict(sorted(tally.log.counts.items())),
            examples={code: tuple(texts) for code, texts in sorted(tally.log.examples.items())},
            candidates=tally.candidates,
            surplus=tally.surplus,
            entities=entities,
            catalog_hash=catalog_hash,
            executed_calls=executed_calls,
        )

    def short_of(self, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The splits with fewer tasks than were asked for: (made, asked)."""
        made = {split: len(self.tasks.get(split, ())) for split in counts}
        return {split: (made[split], count) for split, count in counts.items() if made[split] < count}

    @property
    def stages(self) -> list[JsonObject]:
        """The yield: what went into each stage and what came out, the last line being what is written."""
        rows = yield_table(self.candidates, self.rejects, GENERATION_STAGES)
        proven = self.candidates - sum(self.rejects.values())
        lost = {"surplus": self.surplus} if self.surplus else {}
        rows.append({"name": "wanted", "in": proven, "out": proven - self.surplus, "rejects": lost})
        return rows


async def generate_dataset(
    pool: ToolProvider,
    templates: TemplateSet,
    *,
    counts: Mapping[str, int],
    seed: int,
    shares: SplitShares = SplitShares(),
    distractors: int | None = None,
    on_progress: Progress | None = None,
    variation: Variation | None = None,
    shard: DatasetShard | None = None,
) -> GeneratedData:
    """Up to `counts[split]` distinct tasks for each split: as many as the templates give with its entities,
    the same for the same seed, templates and servers.

    An entity occurs in one split only, and so does every task. `distractors` None offers the whole catalog
    with each task. With a `variation` they are tasks near those that were failed. A `shard` tries its share
    of the candidates and keeps their outcomes. Raises UserError where there is not one task.
    """
    check_counts(counts)
    cache = CallCache(pool)
    splits = [split for split in SPLITS if counts.get(split)]
    listed = await list_entities(templates, cache)
    entities = split_entities(
        listed,
        shares=shares,
        seed=seed,
        least=templates.needed,
        splits=splits if variation is None else variation.splits,
    )
    drawn = templates.templates if variation is None else variation.templates(templates.templates)
    draw_seed = seed if variation is None else derive_seed(seed, "failures", variation.draw_seed)
    offer = ToolSelection(catalog=pool.tools, distractors=distractors)
    tally = Tally()
    turn = asyncio.Lock()
    tasks: dict[str, Sequence[Task]] = {}
    for split in splits:
        draw = Draw(drawn, entities[split], split=split, seed=draw_seed)
        if not draw.templates:
            tasks[split] = ()
            continue
        source = _SplitSource(
            draw=draw, offer=offer, split=split, seed=seed, cache=cache, turn=turn, variation=variation
        )
        tasks[split] = await fill_split(source, counts[split], tally, on_progress, shard)
    if shard is not None:
        shard.divided = text_hash(entities)
    elif not any(tasks.values()):
        raise without_a_task(counts, tally)
    sizes = {split: {p: len(values) for p, values in pools.items()} for split, pools in entities.items()}
    return GeneratedData.of(
        tasks, tally, entities=sizes, catalog_hash=offer.catalog_hash, executed_calls=cache.executed
    )


class SeenTexts:
    """Texts, of which 64 bits each are kept: for a million of them two are taken for one by a chance of 3 in
    a hundred million."""

    def __init__(self) -> None:
        self._digests: set[int] = set()

    def __contains__(self, text: str) -> bool:
        return text_digest(text) in self._digests

    def add(self, text: str) -> None:
        """Keep a text."""
        self._digests.add(text_digest(text))

    def clear(self) -> None:
        """Forget all of them."""
        self._digests.clear()


class Tally:
    """The account of a run: `seen` holds the keys tried in any split, and the questions that were said."""

    def __init__(self) -> None:
        self.log = RejectLog()
        self.seen = SeenTexts()
        self.candidates = 0
        self.surplus = 0


@dataclass(kw_only=True)
class _SplitSource:
    """Drafts of one split in the order of their index."""

    draw: Draw
    offer: ToolSelection
    split: str
    seed: int
    cache: CallCache
    turn: asyncio.Lock
    variation: Variation | None = None
    index: int = 0

    def next(self) -> Candidate | None:
        candidate = self.draw(self.index)
        self.index += 1
        return candidate

    def said(self, candidate: Candidate, outcome: Task | Rejection) -> str | None:
        """Templates may say two tasks in the same words."""

    async def make(self, candidate: Candidate) -> Task | Rejection:
        draft = draft_task(candidate, offer=self.offer, split=self.split, seed=self.seed)
        if self.variation is not None and not self.variation.admits(draft):
            return Rejection(RejectCode.DUPLICATE, f"{candidate.template.name}: {draft.id} is in the dataset")
        outcome = await ground_in_turn(draft, self.cache, self.turn)
        if isinstance(outcome, Task) and candidate.template.withhold:
            outcome = await without_tools(outcome, candidate, offer=self.offer, cache=self.cache)
        if isinstance(outcome, Rejection):
            return replace(outcome, detail=f"{candidate.template.name}: {outcome.detail}")
        return outcome


class Keyed(Protocol):
    """A candidate, whose key is that of every candidate that asks for the same."""

    @property
    def key(self) -> str:
        """Of what it asks for."""
        ...


class TaskSource(Protocol[_C]):
    """Candidates of one split, in a fixed order that the outcomes have no part in."""

    split: str

    def next(self) -> _C | None:
        """The next candidate; None where the split had it before."""
        ...

    def said(self, candidate: _C, outcome: Task | Rejection) -> str | None:
        """The words that no other candidate may use, where this one came so far as to be compared."""
        ...

    async def make(self, candidate: _C) -> Task | Rejection:
        """Run it and prove it."""
        ...


@dataclass(kw_only=True)
class DatasetShard:
    """What the `number`-th of `of` shards tried: `rows` has one for each of its candidates, `drawn` how many
    were drawn of each split. A hash of the seed and the candidate's key says whose it is, so that shards are
    of one size whatever the order of the candidates. `divided` is a hash of what there is to ask about and of
    the split of each thing, `described` what is added to a task before it is written."""

    number: int
    of: int
    seed: int
    rows: DiskList[JsonObject] = field(default_factory=DiskList[JsonObject])
    drawn: dict[str, int] = field(default_factory=dict)
    divided: str = ""
    described: Callable[[Task], Task] = lambda task: task

    def has(self, key_hash: str) -> bool:
        """Whether a candidate is this shard's."""
        return derive_seed(self.seed, "shard", key_hash) % self.of == self.number - 1

    def enough(self, count: int) -> int:
        """How many tasks of its own leave none of the first `count` of all shards out: its share, and five
        standard deviations of what chance gives to another."""
        share = (count + _BATCH) / self.of
        return math.ceil(share + 5 * math.sqrt(share) + 3) if count else 0

    def add(self, split: str, index: int, key: str, said: str | None, outcome: Task | Rejection) -> None:
        """Keep what became of candidate `index` of a split."""
        row: JsonObject = {"split": split, "index": index, "key": text_hash(key)}
        if said is not None:
            row["said"] = text_hash(said)
        if isinstance(outcome, Task):
            row["task"] = task_record(self.described(outcome))
        else:
            row |= {"reject": outcome.code.value, "detail": outcome.detail}
        self.rows.append(row)


def text_hash(value: Any) -> str:
    """A short hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return blake2b(text.encode(), digest_size=12).hexdigest()


async def fill_split(
    source: TaskSource[_C],
    count: int,
    tally: Tally,
    on_progress: Progress | None,
    shard: DatasetShard | None = None,
) -> Sequence[Task]:
    """`count` proven tasks of the source; where it has no more, those that there are. A shard makes more than
    its share of them: which are among the first `count`, all shards together say."""
    kept: DiskList[Task] = DiskList()
    drawn = fruitless = refused = made = 0
    most = _MAX_FRUITLESS
    if shard is not None:
        # Each split by itself: how far the one before would have gone, no shard knows.
        tally.seen.clear()
        count, most = shard.enough(count), _MAX_FRUITLESS_OF_SHARD
    while made < count:
        batch: list[tuple[int, _C]] = []
        # One run's batches take part in what is kept; a shard needs no surplus.
        size = _BATCH if shard is None else min(_BATCH, count - made)
        while len(batch) < size and fruitless < most:
            candidate = source.next()
            drawn += 1
            tally.candidates += 1
            if candidate is None or candidate.key in tally.seen:
                fruitless += 1
                tally.log.counts[RejectCode.DUPLICATE] += 1
                continue
            tally.seen.add(candidate.key)
            if shard is not None and not shard.has(text_hash(candidate.key)):
                fruitless = 0  # it may become a task elsewhere
                continue
            batch.append((drawn - 1, candidate))
        outcomes = await asyncio.gather(*(source.make(candidate) for _, candidate in batch))
        for (index, candidate), outcome in zip(batch, outcomes, strict=True):
            if shard is not None:
                said = source.said(candidate, outcome)
                shard.add(source.split, index, candidate.key, said, outcome)
            if isinstance(outcome, Task):
                made += 1
                if made <= count:
                    kept.append(outcome)
                fruitless = refused = 0
            else:
                fruitless += 1
                refused += 1
                tally.log.add(outcome)
        if on_progress is not None:
            on_progress(source.split, len(kept), count)
        if max(fruitless, refused) >= most and made < count:
            break
    if shard is not None:
        shard.drawn[source.split] = drawn
    tally.surplus += made - len(kept)
    return kept


async def ground_in_turn(draft: Task, cache: CallCache, turn: asyncio.Lock) -> Task | Rejection:
    """Plans that change something go one at a time: a user's own server may keep one state for all sessions,
    and then two of them at once would read each other's end state."""
    truth = draft.truth
    if not truth.setup and all(cache.is_read_only(step.server, step.tool) for step in truth.tool_sequence):
        return await ground(draft, cache, phrase_words=0)
    async with turn:
        return await ground(draft, cache, phrase_words=0)


def without_a_task(counts: Mapping[str, int], tally: Tally) -> UserError:
    """Why there is nothing to write."""
    log = tally.log
    rejected = ", ".join(f"{code} {n}" for code, n in sorted(log.counts.items()))
    examples = [f"\n  {code}: {texts[0]}" for code, texts in sorted(log.examples.items())]
    why = f"rejected: {rejected}{''.join(examples)}" if rejected else "no template has the entities it needs"
    asked = ", ".join(f"{split} {count}" for split, count in counts.items() if count)
    return UserError(
        f"found not one task (asked for: {asked}); {why}", remedy="add templates, or entities in pools.yaml"
    )


def short_note(short: Mapping[str, tuple[int, int]], why: str) -> str:
    """One sentence: which splits have fewer tasks than were asked for (made, asked), and why."""
    parts = [
        f"{split} has {made} of {asked} tasks" + ("" if made else " and no file")
        for split, (made, asked) in short.items()
    ]
    return f"{', '.join(parts)}: {why}"


def why_short(data: GeneratedData) -> str:
    """What there was to ask about, where it was not enough."""
    sizes = data.entities.values()
    if all("facts" in of_split for of_split in sizes):  # explored
        things = sum(of_split["facts"] for of_split in sizes)
        return f"the read-only tools gave {things} things to ask about, each of which belongs to one split"
    tried = {
        split: ", ".join(f"{n} {pool}" for pool, n in data.entities[split].items()) for split in data.tasks
    }
    told = "; ".join(f"{split}: {of_split}" for split, of_split in tried.items())
    return f"the templates give no other task with the entities of a split ({told}); add some to pools.yaml"


def check_counts(counts: Mapping[str, int]) -> None:
    """Raises UserError for splits that there are not, and for numbers of tasks that cannot be."""
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
