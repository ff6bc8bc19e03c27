"""Tasks for servers that no template knows: random walks over what their read-only tools were seen to do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any

from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import GroundTruth, Message, RewardSpec, Task
from mcpagent.errors import UserError
from mcpagent.synth.explore.graph import Edge, Fact, Leaf, ToolGraph, Walk
from mcpagent.synth.explore.learning import Learned, learn
from mcpagent.synth.explore.wording import WORDINGS, words_of
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.record import ToolSelection, system_message
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import RejectCode, Rejection
from mcpagent.synth.templates.pools import SPLITS, SplitShares
from mcpagent.synth.templates.rules import (
    GeneratedData,
    Progress,
    Tally,
    abstaining,
    check_counts,
    fill_split,
    ground_in_turn,
)
from mcpagent.tools.contract import ToolProvider

DATA_SOURCE = "synthetic/explored"
_MORE_CHANCES = 4  # for a split of whose facts none became a task: each time it has one fact more
_LONGEST = 4  # calls of a walk
_SPARE_TURNS = 3
_PLACE = re.compile(r"\[(\d+)\]")
_KINDS = {
    "single": 3,
    "sequential": 4,
    "parallel": 2,
    "missing_parameter": 1,
    "missing_function": 1,
    "irrelevance": 0.3,
}


async def explore_dataset(
    pool: ToolProvider,
    *,
    counts: Mapping[str, int],
    seed: int,
    shares: SplitShares = SplitShares(),
    distractors: int | None = None,
    on_progress: Progress | None = None,
    learned: Learned | None = None,
) -> GeneratedData:
    """Up to `counts[split]` distinct tasks for each split: as many as the servers have matter for, and one at
    least in each, where there is one. The tools are looked at first, unless it is given what was `learned`.

    What is asked about in one split is not in another. Raises UserError where no tool may be called, or none
    gives anything to ask about.
    """
    check_counts(counts)
    if learned is None:
        cache = CallCache(pool)
        learned = Learned(cache, await learn(cache, seed=seed))
    cache, graph = learned.cache, learned.graph
    if not graph.facts:
        why = "; ".join(f"{', '.join(silence.tools)}: {silence.text}" for silence in graph.silences)
        raise UserError(
            f"there is nothing to make tasks from: {why}",
            remedy="name the tools that only read: --read-only SERVER.TOOL,... (tools.read_only); or write "
            "templates for these servers: --templates FOLDER (see templates/tasks)",
        )
    offer = ToolSelection(catalog=pool.tools, distractors=distractors)
    least = {split: 1 for split in SPLITS if counts.get(split)}
    made = await _filled(graph, counts, seed, shares, least, offer, cache, on_progress)
    for _ in range(_MORE_CHANCES):
        empty = [split for split, tasks in made.tasks.items() if not tasks]
        if not empty:
            break
        least |= {split: least[split] + 1 for split in empty}
        again = await _filled(graph, counts, seed, shares, least, offer, cache, on_progress)
        made = max(made, again, key=lambda data: sum(map(bool, data.tasks.values())))
    if not any(made.tasks.values()):
        raise UserError(
            f"none of {made.candidates} candidates became a task: {dict(made.rejects)}",
            remedy="write templates for these servers: --templates FOLDER (see templates/tasks)",
        )
    return made


async def _filled(
    graph: ToolGraph,
    counts: Mapping[str, int],
    seed: int,
    shares: SplitShares,
    least: Mapping[str, int],
    offer: ToolSelection,
    cache: CallCache,
    on_progress: Progress | None,
) -> GeneratedData:
    """The tasks of each split, where each has at least `least` facts to ask about, if there are so many."""
    askable = (_about(fact) for fact in graph.facts if any(map(_is_worth_asking, fact.leaves)))
    split_of = shares.assign(askable, seed=seed, least=least)
    tally, turn = Tally(), asyncio.Lock()
    tasks: dict[str, tuple[Task, ...]] = {}
    used: dict[str, Mapping[str, int]] = {}
    for split in least:
        facts = [f for f in graph.facts if _split_of(f, split_of, shares, seed) == split]
        used[split] = {"facts": len(facts)}
        source = _WalkSource(
            graph=graph, facts=facts, offer=offer, split=split, seed=seed, seen=tally.seen, turn=turn
        )
        tasks[split] = await fill_split(source, counts[split], cache, tally, on_progress)
    return GeneratedData.of(
        tasks, tally, entities=used, catalog_hash=offer.catalog_hash, executed_calls=cache.executed
    )


def _split_of(fact: Fact, assigned: Mapping[str, str], shares: SplitShares, seed: int) -> str:
    about = _about(fact)
    return assigned.get(about) or shares.split_of(about, seed=seed)


def _about(fact: Fact) -> str:
    return json.dumps([fact.spec.dotted, fact.arguments], sort_keys=True)


@dataclass(kw_only=True)
class _WalkSource:
    graph: ToolGraph
    facts: Sequence[Fact]
    offer: ToolSelection
    split: str
    seed: int
    seen: set[str]
    turn: asyncio.Lock
    index: int = field(default=0)

    def next(self) -> Walk | None:
        rng = Random(derive_seed(self.seed, "walk", self.split, self.index))
        self.index += 1
        walk = _walk(rng, self.graph, self.facts) if self.facts else None
        if walk is None or walk.key in self.seen:
            return None
        self.seen.add(walk.key)
        return walk

    async def make(self, candidate: Walk, cache: CallCache) -> Task | Rejection:
        draft = _draft(candidate, offer=self.offer, split=self.split, seed=self.seed)
        outcome = await ground_in_turn(draft, cache, self.turn)
        if isinstance(outcome, Task) and candidate.kind == "missing_function":
            return self._without(outcome, candidate)
        return outcome

    def _without(self, task: Task, walk: Walk) -> Task | Rejection:
        """Take away every tool that was seen to give the answer, and those that were not seen at all."""
        fact = walk.asked[0].value
        telling = {walk.facts[-1].spec.dotted, *self.graph.not_tried} | {
            other.spec.dotted
            for other in self.graph.facts
            if any(stands_in(fact, str(leaf.value)) for leaf in other.leaves)
        }
        tools = self.offer.tools_for(set(), seed=derive_seed(self.seed, walk.key), withheld=telling)
        if not tools:
            return Rejection(RejectCode.STILL_ANSWERABLE, f"every tool that is left may give {fact!r}")
        return abstaining(
            task, tools, withheld=sorted(telling), refusal="None of the tools that I have can do that."
        )


def _walk(rng: Random, graph: ToolGraph, facts: Sequence[Fact]) -> Walk | None:
    """A random question about one of `facts`; None where this one has nothing to ask."""
    kind = rng.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
    last = rng.choice(facts)
    wording = rng.randrange(WORDINGS)
    askable = [leaf for leaf in last.leaves if _is_worth_asking(leaf)]
    if kind == "irrelevance":
        return Walk(kind, (last,), (None,), (), wording) if list(last.texts) else None
    if not askable:
        return None
    # The third word of a text is asked for less often than what has a name of its own.
    leaf = rng.choices(askable, weights=[1 if "word(" in leaf.expression else 4 for leaf in askable])[0]
    if last.page > 1 and graph.edges_into(last):
        kind = "sequential"  # nobody knows how to go on in a list before its first page was seen
    if kind == "parallel":
        twins = [f for f in facts if f.spec is last.spec and f is not last]
        other = rng.choice(twins) if twins else None
        same = [twin for twin in other.leaves if twin.expression == leaf.expression] if other else []
        if other is None or not same or str(same[0].value) == str(leaf.value):
            return None
        return Walk(kind, (other, last), (None, None), (same[0], leaf), wording)
    if kind == "sequential":
        return _chain(rng, graph, last, leaf, wording)
    if kind == "missing_parameter" and not list(last.texts):
        return None
    return Walk(kind, (last,), (None,), (leaf,), wording)


def _chain(rng: Random, graph: ToolGraph, last: Fact, leaf: Leaf, wording: int) -> Walk | None:
    facts: list[Fact] = [last]
    edges: list[Edge | None] = [None]
    for _ in range(rng.randint(1, _LONGEST - 1)):
        ways = [edge for edge in graph.edges_into(facts[0]) if edge.source not in facts]
        if not ways:
            break
        edges[0] = rng.choice(ways)
        facts.insert(0, edges[0].source)
        edges.insert(0, None)
    return Walk("sequential", tuple(facts), tuple(edges), (leaf,), wording) if len(facts) > 1 else None


def _is_worth_asking(leaf: Leaf) -> bool:
    """Not what could be guessed: a short word, a small number, or the place in a list that it is asked of;
    nor what nobody would count to."""
    if not leaf.is_near:
        return False
    if isinstance(leaf.value, str):
        return len(leaf.value) >= 3 and any(character.isalnum() for character in leaf.value)
    places = [int(place) for place in _PLACE.findall(leaf.expression)]
    return abs(leaf.value) > 2 and leaf.value not in places and leaf.value - 1 not in places


def _draft(walk: Walk, *, offer: ToolSelection, split: str, seed: int) -> Task:
    plan = _plan(walk)
    gold = {fact.spec.dotted for fact in walk.facts}
    tools = offer.tools_for(gold, seed=derive_seed(seed, "offer", walk.key))
    prompt, user_turns = words_of(walk)
    digest = blake2b(walk.key.encode(), digest_size=6).hexdigest()
    truth: JsonObject = {
        "task_id": f"explored-{walk.kind.replace('_', '-')}-{digest}",
        "complexity": "simple" if len(plan) <= 1 else "moderate" if len(plan) == 2 else "complex",
        "max_turns": len(plan) + len(user_turns) + _SPARE_TURNS,
    }
    if walk.kind == "irrelevance":
        truth |= {
            "abstain": True,
            "final_answer": {"type": "abstention", "value": "replies"},
            "reference_answer": "You are welcome.",
        }
    else:
        truth |= _checks(walk, plan)
    if user_turns:
        truth |= {"user_turns": [without_marks(text) for text in user_turns], "quiet_turns": [0]}
    return Task(
        data_source=DATA_SOURCE,
        prompt=(
            Message(role="system", content=system_message(tools)),
            Message(role="user", content=without_marks(prompt)),
        ),
        reward_spec=RewardSpec(ground_truth=GroundTruth.model_validate(truth)),
        extra_info={
            "tools": [tool.dotted for tool in tools.values()],
            "generator": "explore",
            "class": walk.kind,
            "about": walk.about,
            "split": split,
            "seed": seed,
            "catalog_hash": offer.catalog_hash,
        },
    )


def _plan(walk: Walk) -> list[JsonObject]:
    if walk.kind == "irrelevance":
        return []
    plan: list[JsonObject] = []
    for number, (fact, edge) in enumerate(zip(walk.facts, walk.edges, strict=True), 1):
        params: JsonObject = dict(fact.arguments)
        if edge is not None:
            reference = edge.prefix + edge.leaf.of_step(number - 1)
            params[edge.parameter] = _replaced(params[edge.parameter], edge.text, reference)
        step = {"step": number, "server": fact.spec.server, "tool": fact.spec.name, "params": params}
        if walk.kind == "parallel":
            step["parallel_group"] = 1
        if walk.kind == "missing_parameter":
            step["user_turn"] = 1
        plan.append(step)
    return plan


def _replaced(value: Any, text: str, reference: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, text, reference) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, text, reference) for item in value]
    return reference if not isinstance(value, bool) and str(value) == text else value


def _checks(walk: Walk, plan: list[JsonObject]) -> JsonObject:
    first = len(plan) - len(walk.asked) + 1
    facts = [leaf.of_step(first + n) for n, leaf in enumerate(walk.asked)]
    is_number = len(facts) == 1 and not isinstance(walk.asked[0].value, str)
    return {
        "tool_sequence": plan,
        "success": {"must_call_tool": f"{plan[-1]['server']}.{plan[-1]['tool']}"},
        "final_answer": {"type": "number", "value": facts[0]}
        if is_number
        else {"type": "must_include", "value": facts},
        "reference_answer": f"It is {' and '.join(facts)}.",
    }
