"""Tasks for servers that no template knows: random walks over what their read-only tools were seen to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from random import Random
from typing import Any

from mcpagent.core.hidden_text import without_marks
from mcpagent.core.placeholders import result_value
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.errors import UserError
from mcpagent.synth.explore.answers import answer_fields
from mcpagent.synth.explore.changes import Addition, state_of
from mcpagent.synth.explore.graph import Fact, ToolGraph
from mcpagent.synth.explore.learning import Learned, learn
from mcpagent.synth.explore.naming import is_worth_asking
from mcpagent.synth.explore.naturalness import spells_plan
from mcpagent.synth.explore.shapes import WEIGHTS, Shapes
from mcpagent.synth.explore.wording import Said, Walk
from mcpagent.synth.failures import Skill, Variation
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.record import ToolSelection, system_message
from mcpagent.synth.tasks.run import CallCache, says_no
from mcpagent.synth.tasks.stages import RejectCode, Rejection
from mcpagent.synth.templates.pools import SPLITS, SplitShares
from mcpagent.synth.templates.rules import (
    DatasetShard,
    GeneratedData,
    Progress,
    SeenTexts,
    Tally,
    abstaining,
    check_counts,
    fill_split,
    ground_in_turn,
    text_hash,
)
from mcpagent.tools.contract import ToolProvider

DATA_SOURCE = "synthetic/explored"
_MORE_CHANCES = 4  # for a split of whose facts none became a task: each time it has one fact more
_SPARE_TURNS = 3
_NAMED = 3  # tools of many, in an error that follows what was said of each
_LACKING = 3  # solvable walks for each in which nothing is to be called
_NO_PLAN = ("field", "right", "entity")  # what a question lacks so that it has no plan at all
_DRAWS = 100  # walks that are looked at for one near a failed skill


async def explore_dataset(
    pool: ToolProvider,
    *,
    counts: Mapping[str, int],
    seed: int,
    shares: SplitShares = SplitShares(),
    distractors: int | None = None,
    on_progress: Progress | None = None,
    learned: Learned | None = None,
    variation: Variation | None = None,
    asked: Asked | None = None,
    shard: DatasetShard | None = None,
) -> GeneratedData:
    """Up to `counts[split]` distinct tasks for each split: as many as the servers have matter for, and one at
    least in each, where there is one. The tools are looked at first, unless it is given what was `learned`.

    What is asked about in one split is not in another. `asked` says which questions, of every shape if it is
    None. With a `variation` they are tasks near those that were
    failed. A `shard` tries its share of the candidates and keeps their outcomes. Raises UserError where no
    tool may be called, or none gives anything to ask about.
    """
    check_counts(counts)
    if learned is None:
        cache = CallCache(pool)
        learned = Learned(cache, await learn(cache, seed=seed))
    graph = learned.graph
    if not graph.facts:
        why = "; ".join(f"{_first_of(silence.tools)}: {silence.text}" for silence in graph.silences)
        raise UserError(
            f"there is nothing to make tasks from: {why}",
            remedy="name the tools that only read: --read-only SERVER.TOOL,... (tools.read_only); or write "
            "templates for these servers: --templates FOLDER (see templates/tasks)",
        )
    offer = ToolSelection(catalog=pool.tools, distractors=distractors)
    divided = [split for split in SPLITS if counts.get(split)] if variation is None else variation.splits
    least = dict.fromkeys(divided, 1)
    asked = asked or Asked()
    made = await _filled(learned, counts, seed, shares, least, offer, on_progress, variation, asked, shard)
    if shard is not None:
        return made
    for _ in range(_MORE_CHANCES):
        empty = [split for split, tasks in made.tasks.items() if not tasks and counts.get(split)]
        if not empty:
            break
        least |= {split: least[split] + 1 for split in empty}
        again = await _filled(
            learned, counts, seed, shares, least, offer, on_progress, variation, asked, None
        )
        made = max(made, again, key=lambda data: sum(map(bool, data.tasks.values())))
    if not any(made.tasks.values()):
        raise UserError(
            f"none of {made.candidates} candidates became a task: {dict(made.rejects)}",
            remedy="write templates for these servers: --templates FOLDER (see templates/tasks)",
        )
    return made


async def _filled(
    learned: Learned,
    counts: Mapping[str, int],
    seed: int,
    shares: SplitShares,
    least: Mapping[str, int],
    offer: ToolSelection,
    on_progress: Progress | None,
    variation: Variation | None,
    asked: Asked,
    shard: DatasetShard | None,
) -> GeneratedData:
    """The tasks of each split, where each has at least `least` facts to ask about, if there are so many."""
    graph, cache = learned.graph, learned.cache
    askable = (asked.subject(fact) for fact in graph.facts if any(map(is_worth_asking, fact.leaves)))
    assigned = shares.assign(askable, seed=seed, least=least)

    def split_of(subject: str) -> str:
        return assigned.get(subject) or shares.split_of(subject, seed=seed)

    tally, turn = Tally(), asyncio.Lock()
    tasks: dict[str, Sequence[Task]] = {}
    used: dict[str, Mapping[str, int]] = {}
    for split in least:
        facts = [fact for fact in graph.facts if split_of(asked.subject(fact)) == split]
        used[split] = {"facts": len(facts)}
        source = _WalkSource(
            graph=graph,
            additions=learned.additions,
            facts=facts,
            offer=offer,
            split=split,
            seed=seed,
            cache=cache,
            seen=tally.seen,
            turn=turn,
            asked=asked,
            split_of=split_of,
            variation=variation,
        )
        tasks[split] = await fill_split(source, counts.get(split, 0), tally, on_progress, shard)
    if shard is not None:
        told = (
            [split_of(asked.subject(f)), _about(f), [leaf.value for leaf in f.leaves]] for f in graph.facts
        )
        shard.divided = text_hash(list(told))
    return GeneratedData.of(
        tasks, tally, entities=used, catalog_hash=offer.catalog_hash, executed_calls=cache.executed
    )


def _about(fact: Fact) -> str:
    return json.dumps([fact.spec.dotted, fact.arguments], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which questions are asked: how often each shape is drawn, and what else they have to be. `subject` is
    what decides the split of a fact; a question is asked only where its `named` subjects are of its split."""

    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    admits: Callable[[Walk], bool] = lambda _: True
    subject: Callable[[Fact], str] = lambda fact: _about(fact)
    named: Callable[[Walk], Collection[str]] = lambda _: ()


@dataclass(kw_only=True)
class _WalkSource:
    graph: ToolGraph
    additions: Sequence[Addition]
    facts: Sequence[Fact]
    offer: ToolSelection
    split: str
    seed: int
    cache: CallCache
    seen: SeenTexts  # what was said in any split
    turn: asyncio.Lock
    asked: Asked
    split_of: Callable[[str], str]
    variation: Variation | None = None
    index: int = field(default=0)
    solvable: int = field(default=0)
    lacking: int = field(default=0)
    drawn: SeenTexts = field(default_factory=SeenTexts)

    @cached_property
    def shapes(self) -> Shapes:
        """The walks that the facts of the split allow."""
        return Shapes(self.graph, self.facts, self.asked.weights, self.additions)

    def next(self) -> Walk | None:
        walk = self._drawn() if self.variation is None else self._varied(self.variation)
        if walk is None or walk.key in self.drawn or not self.asked.admits(walk):
            return None
        if any(self.split_of(subject) != self.split for subject in self._subjects(walk)):
            return None
        # Where there is little to ask, what cannot be done would be most of what is left.
        is_too_much = (self.lacking + 1) * _LACKING > self.solvable + _LACKING
        if walk.lack and is_too_much and self.variation is None:
            return None
        self.lacking += bool(walk.lack)
        self.solvable += not walk.lack
        self.drawn.add(walk.key)
        return walk

    def _subjects(self, walk: Walk) -> Collection[str]:
        """What has to be of this split: no fact decides where an invented name belongs."""
        is_free = walk.invented and self.variation is None
        return [*self.asked.named(walk), *([json.dumps(["invented", walk.invented])] if is_free else [])]

    def _drawn(self, *label: int) -> Walk | None:
        rng = Random(derive_seed(self.seed, "walk", self.split, self.index, *label))
        self.index += 1
        return self.shapes.draw(rng) if self.facts else None

    def _varied(self, variation: Variation) -> Walk | None:
        """A walk near a failed skill, drawn as often as that was failed."""
        for _ in range(_DRAWS):
            walk = self._drawn(variation.draw_seed)
            if walk is None:
                continue
            rng = Random(derive_seed(self.seed, "kept", self.index, variation.draw_seed))
            calls = () if walk.lack in _NO_PLAN else walk.facts
            skill = Skill.of(walk.kind, [fact.spec.dotted for fact in calls])
            if rng.random() < variation.share(skill):
                return walk
        return None

    def said(self, candidate: Walk, outcome: Task | Rejection) -> str | None:
        if isinstance(outcome, Rejection) and outcome.code in (RejectCode.SPELLS_PLAN, RejectCode.AMBIGUOUS):
            return None
        return _said_text(self._said(candidate))

    def _said(self, walk: Walk) -> Said:
        return walk.said(Random(derive_seed(self.seed, "said", walk.key)))

    async def make(self, candidate: Walk) -> Task | Rejection:
        said = self._said(candidate)
        if fault := self._wording_fault(candidate, said):
            return fault
        state: Mapping[str, list[JsonObject]] | str = {}
        if candidate.reads:
            async with self.turn:
                state = await state_of(candidate, self.cache)
            if isinstance(state, str):
                return Rejection(RejectCode.STATE_UNREADABLE, state)
        draft = _draft(candidate, said, state, offer=self.offer, split=self.split, seed=self.seed)
        if self.variation is not None and not self.variation.admits(draft):
            return Rejection(RejectCode.DUPLICATE, f"{draft.id} is in the dataset")
        outcome = await self._exists(candidate) or await ground_in_turn(draft, self.cache, self.turn)
        if isinstance(outcome, Task) and candidate.lack == "function":
            return self._without(outcome, candidate)
        return outcome

    async def _exists(self, walk: Walk) -> Rejection | None:
        """What another tool tells of a thing that was invented; None where none does."""
        if walk.lack != "existence":
            return None
        async with self.cache.session(only_reads=True) as session:
            for other in walk.steps[-1].others:
                spec = other.spec
                result = await session.call(server=spec.server, tool=spec.name, arguments=other.arguments)
                if not (result.is_error or says_no(result) or not answer_fields(result_value(result))):
                    return Rejection(
                        RejectCode.EXISTS, f"{spec.dotted}({other.arguments}): {result.content[:200]}"
                    )
        return None

    def _wording_fault(self, walk: Walk, said: Said) -> Rejection | None:
        """Why nobody would say it, or why it does not say what is meant."""
        text = _said_text(said)
        specs = [step.fact.spec for step in walk.steps] or list(self.offer.catalog.values())
        if reason := spells_plan(text, specs, entities=walk.entities):
            return Rejection(RejectCode.SPELLS_PLAN, f"{reason}: {text!r}")
        if unsaid := next(
            (value for value in walk.entities if value.casefold() not in text.casefold()), None
        ):
            return Rejection(RejectCode.AMBIGUOUS, f"{unsaid!r} is not in {text!r}")
        if walk.is_ambiguous:
            return Rejection(RejectCode.AMBIGUOUS, f"tools answer differently: {text!r}")
        if (said_before := f"said: {text}") in self.seen:
            return Rejection(RejectCode.DUPLICATE, text)
        self.seen.add(said_before)
        return None

    def _without(self, task: Task, walk: Walk) -> Task | Rejection:
        """Take away every tool that was seen to give the answer, and those that were not seen at all."""
        facts = [value for value in _values(task) if value is not None]
        telling = {walk.steps[-1].fact.spec.dotted, *self.graph.not_tried} | {
            other.spec.dotted
            for other in self.graph.facts
            if any(stands_in(fact, str(leaf.value)) for leaf in other.leaves for fact in facts)
        }
        tools = self.offer.tools_for(set(), seed=derive_seed(self.seed, walk.key), withheld=telling)
        if not tools:
            return Rejection(RejectCode.STILL_ANSWERABLE, f"every tool that is left may give {facts!r}")
        return abstaining(task, tools, withheld=sorted(telling), refusal=_CANNOT_TELL)


def _said_text(said: Said) -> str:
    return " ".join([said.prompt, *said.later])


_CANNOT_TELL = "I cannot tell: none of the tools that I have can do that."
_ADDED = "I have added that."
_CANNOT_CHANGE = "I cannot change that: the tools that I have can only read."


def _values(task: Task) -> list[Any]:
    check = task.truth.final_answer
    if check is None:
        return []
    return list(check.value) if isinstance(check.value, list | tuple) else [check.value]


def _draft(
    walk: Walk,
    said: Said,
    state: Mapping[str, list[JsonObject]],
    *,
    offer: ToolSelection,
    split: str,
    seed: int,
) -> Task:
    plan = [] if walk.lack in _NO_PLAN else _plan(walk, user_turn=len(said.later))
    gold = {fact.spec.dotted for fact in walk.facts}
    withheld = {tool.dotted for tool in offer.catalog.values() if not tool.annotations.read_only}
    tools = offer.tools_for(
        gold,
        seed=derive_seed(seed, "offer", walk.key),
        withheld=withheld if walk.lack == "right" else (),
    )
    digest = blake2b(walk.key.encode(), digest_size=6).hexdigest()
    truth: JsonObject = {
        "task_id": f"explored-{walk.shape.replace('_', '-')}-{digest}",
        "complexity": "simple" if len(plan) <= 1 else "moderate" if len(plan) == 2 else "complex",
        "max_turns": len(plan) + len(said.later) + _SPARE_TURNS,
        **(_abstention(walk) if not plan else _end_state(plan, state) if state else _checks(walk, plan)),
    }
    if said.later:
        truth |= {"user_turns": [without_marks(text) for text in said.later], "quiet_turns": [0]}
    return Task(
        data_source=DATA_SOURCE,
        prompt=(
            Message(role="system", content=system_message(tools)),
            Message(role="user", content=without_marks(said.prompt)),
        ),
        reward_spec=RewardSpec(ground_truth=GroundTruth.model_validate(truth)),
        extra_info={
            "tools": [tool.dotted for tool in tools.values()],
            "generator": "explore",
            "class": walk.kind,
            "shape": walk.shape,
            "register": said.register,
            "about": walk.about,
            **({"invented": walk.invented} if walk.lack == "existence" else {}),
            "split": split,
            "seed": seed,
            "catalog_hash": offer.catalog_hash,
        },
    )


def _abstention(walk: Walk) -> JsonObject:
    """No call is right: the question lacks what a call needs, or no tool can do it."""
    if walk.lack == "entity":
        check = {"type": "abstention", "value": "asks", "about": list(walk.missing)}
        return {
            "abstain": True,
            "final_answer": check,
            "reference_answer": f"Which {walk.missing[0]} do you mean?",
        }
    refusal = _CANNOT_CHANGE if walk.lack == "right" else _CANNOT_TELL
    check = {"type": "abstention", "value": "cannot"}
    return {"abstain": True, "final_answer": check, "reference_answer": refusal}


def _plan(walk: Walk, *, user_turn: int) -> list[JsonObject]:
    plan: list[JsonObject] = []
    for number, step in enumerate(walk.steps, 1):
        made: JsonObject = {
            "step": number,
            "server": step.fact.spec.server,
            "tool": step.fact.spec.name,
            "params": step.params(step.fact.arguments),
        }
        if user_turn:
            made["user_turn"] = user_turn
        if walk.is_parallel:
            made["parallel_group"] = 1
        if walk.lack == "existence":
            made["finds_nothing"] = True
        if step.others:
            made["alternatives"] = [
                {"server": o.spec.server, "tool": o.spec.name, "params": step.params(o.arguments)}
                for o in step.others
            ]
        plan.append(made)
    return plan


def _end_state(plan: list[JsonObject], state: Mapping[str, list[JsonObject]]) -> JsonObject:
    """What is there at the end counts, whichever call put it there."""
    return {"tool_sequence": plan, "success": {}, "state": state, "reference_answer": _ADDED}


def _checks(walk: Walk, plan: list[JsonObject]) -> JsonObject:
    last = walk.steps[-1]
    check: JsonObject = {"type": "must_include", "value": list(walk.answer)}
    if walk.is_number:
        check = {"type": "number", "value": walk.answer[0], "tolerance": walk.tolerance}
    reply = f"It is {' and '.join(walk.answer)}."
    if walk.lack == "existence":
        check = {"type": "abstention", "value": "cannot", "without": list(walk.answer)}
        reply = f"I could not find {walk.saying.subject}: it does not seem to exist."
    return {
        "tool_sequence": plan,
        # Where another tool answers as well, no tool is the one that must be called.
        "success": {} if last.others else {"must_call_tool": last.fact.spec.dotted},
        "final_answer": check,
        "reference_answer": reply,
    }


def _first_of(tools: Sequence[str]) -> str:
    """Some of many, since each was named before."""
    more = len(tools) - _NAMED
    return ", ".join(tools) if more <= 1 else f"{', '.join(tools[:_NAMED])} and {more} others"
