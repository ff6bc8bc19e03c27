"""Tasks for servers that no template knows: random walks over what their tools were seen to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from random import Random

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.datasets import text_digest
from mcpagent.synth.explore.candidates import naming, telling_call
from mcpagent.synth.explore.changes import Change, draw_change, state_of, watching
from mcpagent.synth.explore.graph import Fact, ToolGraph
from mcpagent.synth.explore.questions import is_worth_asking
from mcpagent.synth.explore.shapes import WEIGHTS, Shapes
from mcpagent.synth.explore.walks import Walk, about
from mcpagent.synth.tasks.inspect import answer_facts
from mcpagent.synth.tasks.prove import ground
from mcpagent.synth.tasks.record import ToolSelection, build_task, task_id
from mcpagent.synth.tasks.run import NO_NAME, CallCache, anonymous, replaced_in, says_no
from mcpagent.synth.tasks.stages import RejectCode, Rejection
from mcpagent.synth.templates.pools import SplitShares
from mcpagent.synth.templates.rules import (
    UNSEEN,
    GeneratedData,
    Progress,
    abstaining,
    counts_of_sources,
    fill_splits,
)
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.languages import takes_language

_SPARE_TURNS = 3
_DRAWS = 4  # walks of which one is taken
_LACKING = 3  # solvable walks for each in which nothing is to be called
_AT_LEAST, _AT_MOST = 0.25, 0.5  # of the walks change something, if a server can be changed


@dataclass(frozen=True)
class Learned:
    """The things that exploring has found out: what the tools were seen to do, the answers that showed it,
    what can be changed and read back, and by server the reads that show whether anything was changed."""

    cache: CallCache
    graph: ToolGraph
    changes: Sequence[Change] = ()
    watch: Mapping[str, Sequence[Fact]] = field(default_factory=dict)

    def without(self, servers: Collection[str]) -> Learned:
        """Return what was seen of the other servers alone."""
        graph = ToolGraph(self.graph.relations, silences=self.graph.silences)
        for fact in self.graph.facts:
            if fact.spec.server not in servers:
                graph.add(fact)
        return replace(
            self,
            graph=graph,
            changes=[change for change in self.changes if change.spec.server not in servers],
            watch={server: reads for server, reads in self.watch.items() if server not in servers},
        )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A choice of questions: how often each shape is drawn, and what else they have to be. Whether one that
    is held out `begins_anywhere`, with what training names too: "the licence of the captain of ship Aurora",
    where only the captain is held out."""

    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    admits: Callable[[Walk], bool] = lambda _: True
    begins_anywhere: bool = True


async def explore_dataset(
    pool: ToolProvider,
    *,
    counts: Mapping[str, int],
    seed: int,
    distractors: int | None = None,
    on_progress: Progress | None = None,
    learned: Learned,
    asked: Asked | None = None,
    heldout_servers: Collection[str] = (),
) -> GeneratedData:
    """Return up to `counts[split]` distinct tasks for each split: as many as what was `learned` has matter
    for.

    What is asked about in one split is not in another, and no call of training is about it either. `asked`
    says which questions, of every shape if it is None. Of `heldout_servers` nothing is in another split than
    `heldout`, half of whose tasks ask about them. Raises UserError if no tool may be called, or none gives
    anything to ask about.
    """
    counts = counts_of_sources(counts, heldout_servers)
    offer = ToolSelection(catalog=pool.tools, distractors=distractors, unseen_servers=tuple(heldout_servers))
    facts, asked = [fact for fact in learned.graph.facts if fact.is_sayable], asked or Asked()
    if not facts:
        why = "; ".join(f"{', '.join(silence.tools)}: {silence.text}" for silence in learned.graph.silences)
        raise UserError(
            f"there is nothing to make tasks from: {why}",
            remedy="name the tools that only read: --read-only SERVER.TOOL,... (tools.read_only); or write "
            "templates for these servers: --templates FOLDER (see templates/tasks)",
        )
    # A split that has nothing but what tools without arguments tell has hardly a question.
    askable = [fact for fact in facts if any(is_worth_asking(leaf, fact) for leaf in fact.leaves)]
    things = [fact for fact in askable if fact.arguments] or askable
    shares = SplitShares()
    shared = [fact.subject for fact in things if fact.spec.server not in heldout_servers]
    unseen = (fact.subject for fact in facts if fact.spec.server in heldout_servers)
    assigned = dict.fromkeys(unseen, "heldout")
    assigned |= shares.assign(shared, seed=seed, least=dict.fromkeys(counts, 1))

    def split_of(subject: str) -> str:
        return assigned.get(subject) or shares.split_of(subject, seed=seed)

    of_split: dict[str, list[Fact]] = {split: [] for split in counts}
    for fact in facts:
        split = split_of(fact.subject)
        if fact.spec.server in heldout_servers:
            split = UNSEEN if split == "heldout" else ""
        if split in of_split:
            of_split[split].append(fact)
    seen = learned.without(heldout_servers) if heldout_servers else learned
    changes = [change for change in learned.changes if change.spec.server in heldout_servers]
    sources = {
        split: _WalkSource(
            split="heldout" if split == UNSEEN else split,
            facts=members,
            learned=replace(learned, changes=changes) if split == UNSEEN else seen,
            offer=offer if split == UNSEEN else offer.seen,
            seed=seed,
            split_of=split_of,
            asked=asked,
        )
        for split, members in of_split.items()
    }
    return await fill_splits(
        sources,
        counts,
        entities={split: {"facts": len(members)} for split, members in of_split.items()},
        catalog_hash=offer.catalog_hash,
        cache=learned.cache,
        on_progress=on_progress,
    )


@dataclass(kw_only=True)
class _WalkSource:
    """Questions about the facts of one split."""

    split: str
    facts: Sequence[Fact]
    learned: Learned
    offer: ToolSelection
    seed: int
    split_of: Callable[[str], str]
    asked: Asked
    index: int = 0
    made: Counter[str] = field(default_factory=Counter)  # of all, that lack something, that change something
    drawn: set[int] = field(default_factory=set)  # `text_digest` of their keys
    forms: Counter[str] = field(default_factory=Counter)

    @cached_property
    def shapes(self) -> Shapes:
        """The walks that the facts of the split allow."""
        return Shapes(self.learned.graph, self.facts, self.asked.weights)

    def next(self) -> Walk | None:
        ways = (partial(self._change, _AT_LEAST), self._drawn, partial(self._change, _AT_MOST))
        walk = next((walk for way in ways if (walk := way()) and self._fits(walk)), None)
        if walk is not None:
            self.drawn.add(text_digest(walk.key))
            self.forms[walk.form] += 1
            self.made.update(all=1, lacking=bool(walk.lack), changing=bool(walk.reads))
        return walk

    def _fits(self, walk: Walk) -> bool:
        """Whether a walk is a new one, of this split alone, and not too much of what cannot be done: if there
        is little to ask, that would be most of what is left."""
        return (
            text_digest(walk.key) not in self.drawn
            and self.asked.admits(walk)
            and all(self.split_of(subject) == self.split for subject in self._subjects(walk))
            and not (walk.lack and self.made["lacking"] * (_LACKING + 1) > self.made["all"])
        )

    def _subjects(self, walk: Walk) -> Collection[str]:
        """Return what has to be of this split: no fact decides where an invented name belongs."""
        invented = [json.dumps(["invented", walk.invented])] if walk.invented else []
        begins_anywhere = self.split != "train" and self.asked.begins_anywhere
        facts = [step.fact for step in (() if begins_anywhere else walk.steps)]
        return [*(fact.subject for fact in facts if fact.about in fact.arguments), *invented]

    def _rng(self) -> Random:
        self.index += 1
        return Random(derive_seed(self.seed, "walk", self.split, self.index - 1))

    def _drawn(self) -> Walk | None:
        """The walk of a few whose field was asked for least."""
        walks = (self.shapes.draw(self._rng()) for _ in range(_DRAWS if self.facts else 0))
        fitting = [walk for walk in walks if walk and self._fits(walk)]
        return min(fitting, key=lambda walk: self.forms[walk.form], default=None)

    def _change(self, share: float) -> Walk | None:
        """A walk that changes something, if that is less than a share of all."""
        if not self.learned.changes or self.made["changing"] > share * self.made["all"]:
            return None
        learned = self.learned
        return draw_change(learned.changes, learned.graph, self.facts, self.shapes.taken, self._rng())

    async def make(self, candidate: Walk) -> Task | Rejection:
        said = candidate.said(Random(derive_seed(self.seed, "said", candidate.key)))
        state: Mapping[str, list[JsonObject]] | str = watching(self.learned.watch)
        if candidate.reads:
            async with self.learned.cache.turn:
                state = await state_of(candidate, self.learned.cache)
        if isinstance(state, str):
            return Rejection(RejectCode.STATE_UNREADABLE, state)
        draft = _draft(candidate, said, state, offer=self.offer, split=self.split, seed=self.seed)
        outcome = await self._exists(candidate)
        outcome = outcome or await ground(draft, self.learned.cache)
        if isinstance(outcome, Task) and candidate.lack == "function":
            return await self._without(outcome, candidate)
        return outcome

    async def _exists(self, walk: Walk) -> Rejection | None:
        """Return what another tool tells of a thing that was invented; None if none does."""
        if walk.lack != "existence":
            return None
        asked = walk.steps[-1].fact
        name = next(value for _, value in asked.given)
        async with self.learned.cache.session(only_reads=True) as session:
            for spec in self._readers(asked.spec.dotted):
                for arguments in {tuple(each): each for each in naming(spec, [name])}.values():
                    told = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
                    if told.is_error or says_no(told):
                        continue
                    nothing = replaced_in(arguments, str(name), NO_NAME)
                    of_nothing = await session.call(server=spec.server, tool=spec.name, arguments=nothing)
                    if anonymous(told, (str(name),)) != anonymous(of_nothing, (NO_NAME,)):
                        detail = f"{spec.dotted}({arguments}): {told.content[:200]}"
                        return Rejection(RejectCode.EXISTS, detail)
        return None

    async def _without(self, task: Task, walk: Walk) -> Task | Rejection:
        """Take away every tool of the server, and of the others those that tell the answer or execute what
        they are told: a wish of another server's domain."""
        facts, server = answer_facts(task), walk.steps[-1].fact.spec.server
        telling = {spec.dotted for spec in self.offer.catalog.values() if spec.server == server}
        named = list(dict.fromkeys(names[0] for seen in walk.seen for names in seen["about"]))
        async with self.learned.cache.session(only_reads=True) as session:
            for spec in self._readers(*telling):
                if takes_language(spec) or await telling_call(session, spec, named, facts) is not None:
                    telling.add(spec.dotted)
        tools = self.offer.tools_for(set(), seed=derive_seed(self.seed, walk.key), withheld=telling)
        if not tools or server in self.offer.unseen_servers:
            return Rejection(RejectCode.STILL_ANSWERABLE, f"no tool is left but those of {server}")
        return abstaining(task, tools, offer=self.offer, withheld=sorted(telling))

    def _readers(self, *without: str) -> list[ToolSpec]:
        """The other tools that only read."""
        catalog = self.offer.catalog.values()
        return [spec for spec in catalog if spec.annotations.read_only and spec.dotted not in without]


def _draft(
    walk: Walk,
    said: Sequence[str],
    state: Mapping[str, list[JsonObject]],
    *,
    offer: ToolSelection,
    split: str,
    seed: int,
) -> Task:
    plan = [] if walk.lack == "right" else _plan(walk, user_turn=len(said) - 1)
    gold = {step.fact.spec.dotted for step in walk.steps}
    writing = {tool.dotted for tool in offer.catalog.values() if not tool.annotations.read_only}
    withheld = writing if walk.lack == "right" else ()
    tools = offer.tools_for(gold, seed=derive_seed(seed, "offer", walk.key), withheld=withheld)
    truth: JsonObject = {
        "task_id": task_id(f"explored-{walk.shape.replace('_', '-')}", walk.key),
        "complexity": "simple" if len(plan) <= 1 else "moderate" if len(plan) == 2 else "complex",
        "max_turns": len(plan) + len(said) - 1 + _SPARE_TURNS,
        **({"tool_sequence": plan, **_checks(walk)} if plan else {"final_answer": {"type": "none"}}),
    }
    can_write = writing & {tool.dotted for tool in tools.values()}
    if plan and state and (walk.reads or can_write):
        truth["state"] = state
    if len(said) > 1:
        truth |= {"user_turns": list(said[1:]), "quiet_turns": [0]}
    info = {"invented": walk.invented} if walk.lack == "existence" else {}
    return build_task(
        offer,
        tools,
        truth,
        said[0],
        data_source="synthetic/explored",
        generator="explore",
        **{"class": walk.kind},
        shape=walk.shape,
        about=about(walk.steps[-1].fact),  # what is asked about, however it is reached
        **info,
        split=split,
        seed=seed,
        catalog_hash=offer.catalog_hash,
    )


def _plan(walk: Walk, *, user_turn: int) -> list[JsonObject]:
    extra: JsonObject = {"user_turn": user_turn} if user_turn else {}
    extra |= {"parallel_group": 1} if walk.kind == "parallel" else {}
    extra |= {"finds_nothing": True} if walk.lack == "existence" else {}
    called = [(number, step.fact.spec, step.params) for number, step in enumerate(walk.steps, 1)]
    return [
        {"step": n, "server": spec.server, "tool": spec.name, "params": p, **extra} for n, spec, p in called
    ]


def _checks(walk: Walk) -> JsonObject:
    if walk.reads:  # what is there at the end counts, whichever call put it there
        return {"success": {}}
    assert walk.answer is not None
    if walk.lack == "existence":
        # What shows that there is no such thing is the call about it.
        return {
            "success": {"must_call_tool": walk.steps[-1].fact.spec.dotted},
            "final_answer": {"type": "none", "form": walk.answer},
        }
    values = [seen["value"] for seen in walk.seen]
    value = dict(zip(walk.things, values, strict=True)) if walk.things else values[0]
    final = {"type": walk.answer, "value": value}
    return {"success": {}, "final_answer": final, "evidence": list(walk.seen)}
