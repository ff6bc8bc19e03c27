"""The quickstart on servers of the user's own: their tasks, and whether those are enough to learn from."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.answer_line import stated
from mcpagent.core.placeholders import format_value, reference_texts
from mcpagent.core.tasks import Task
from mcpagent.demo.pretrained import LEAST
from mcpagent.errors import UserError
from mcpagent.synth.datasets.describe import task_class
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.explore.leaves import Leaf
from mcpagent.synth.explore.tasks import Asked, Learned, explore_dataset
from mcpagent.synth.explore.walks import Walk
from mcpagent.synth.generate import server_places, values_by_slot
from mcpagent.synth.tasks.inspect import stands_in, user_text, values_of, widest
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.templates.rules import GeneratedData, Progress
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.setup import configured_servers

# Below these the embedded model was seen to gain nothing that its interval would show (docs/results.md).
LEAST_FACTS = 30  # answers of the tools that can be asked about
LEAST_TRAIN = 150  # tasks
LEAST_HELDOUT = 40
LEAST_OF_SEVERAL_CALLS = 0.15  # of the tasks: what GRPO teaches is to go on to the end
_ENOUGH = {"train": 600, "heldout": 150}  # tasks; with fewer it works, and the gain is less sure
_MOST_OF_SEVERAL_CALLS = 0.6
_ENOUGH_OF_SEVERAL_CALLS = 0.4  # of the tasks; with fewer the gain is small, since only they can gain

LEFT_OUT = (
    "not asked, since a network of this size does not learn it: to find a thing in a list, or for what has "
    "one of a few values (gen-data --explore asks for that too)"
)

# How often each shape is drawn: what takes several calls above all, since only that gains by GRPO. Chains are
# soon exhausted, so that "both" decides the share: about three tasks of five take several calls.
_WEIGHTS = {
    "single": 2, "chain": 8, "both": 6,
    "missing_entity": 0.8, "missing_function": 0.3, "forbidden": 0.2,
}  # fmt: skip
_MOST_CALLS = 3
_FEW_VALUES, _MANY_THINGS = 6, 4  # of a field, and for each of them on average
_EXAMPLES = 3  # questions that are shown
_COUNTED = re.compile(r"\[\d+\]")

ABOUT = (
    "A network of about half a million weights, built from scratch, learns to use the servers that were "
    "named. Their read-only tools were called to see what they answer, and tasks were made from that. The "
    "network first imitates demonstrations of mixed quality, whose entities have other names each time, "
    "so that it learns to copy; most of those that need several calls stop early. GRPO then trains it on "
    "real episodes, and it learns to go on. Nothing is asked that takes counting or arithmetic. No task of "
    "training names what a held-out one asks about. This shows that there is enough to learn from, and that "
    "training on it teaches; it does not show a general agent."
)


@dataclass(frozen=True, kw_only=True)
class ExploredServers:
    """The servers that were named, values that exploring cannot guess (`gen-data --seed-value`), and servers
    that training is not to see."""

    tools: ToolsConfig
    seed_values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    heldout_servers: Sequence[str] = ()

    @property
    def with_a_model(self) -> str:
        """Return the command that trains a pretrained model on these servers."""
        given = [f"{name}={value}" for name, values in self.seed_values.items() for value in values]
        values = [word for each in given for word in ("--seed-value", each)]
        return f"{shlex.join(['mcpagent', 'quickstart', *self._options, *values])} --model MODEL"

    @property
    def written_by_a_model(self) -> str:
        """Return the command that has a model write the tasks, without an endpoint too."""
        command = ["mcpagent", "gen-data", "--llm", *self._options, "--batch", "round-1.jsonl"]
        return shlex.join([*command, "--out", "data/mine"])

    @property
    def _options(self) -> list[str]:
        named = ["--read-only", ",".join(self.tools.read_only)] if self.tools.read_only else []
        held = [word for name in self.heldout_servers for word in ("--heldout-server", name)]
        return ["--servers", str(self.tools.servers), *named, *held]


def named_servers(servers: str, heldout_servers: Sequence[str]) -> str:
    """Return an mcp.json and those of its servers that training is not to see, as they are given."""
    return " ".join([servers, *(f"--heldout-server {name}" for name in heldout_servers)])


async def explore(
    pool: ToolProvider,
    servers: ExploredServers,
    *,
    counts: Mapping[str, int],
    seed: int,
    note: Callable[[str], None],
    on_progress: Progress,
) -> GeneratedData:
    """Return the tasks that exploring gives, up to `counts` of each split; `note` is told which tools gave
    nothing, and why. Raises UserError if there is too little to learn from."""
    cache = CallCache(pool)
    graph = await learn(
        cache,
        seed=seed,
        seed_values=values_by_slot(servers.seed_values, list(pool.tools.values())),
        places=server_places(configured_servers(servers.tools, on_note=lambda _: None)),
    )
    for silence in graph.silences:
        note(silence.sentence)
    try:
        made = await explore_dataset(
            pool,
            counts=counts,
            seed=seed,
            on_progress=on_progress,
            learned=Learned(cache, graph),
            asked=Asked(weights=_WEIGHTS, admits=within_reach(graph.facts), begins_anywhere=False),
            heldout_servers=servers.heldout_servers,
        )
    except UserError as error:  # not one task
        raise UserError(error.message, where="--servers", remedy=way_on(servers, {})) from error
    apart = disjoint(made.tasks)
    data = replace(
        made,
        tasks={
            split: tuple(map(with_values_alone, balanced(of_split, least=_ENOUGH.get(split, 0))))
            for split, of_split in apart.items()
        },
    )
    if missing := shortfalls(data.tasks, facts=_facts(data)):
        raise UserError(
            f"there is too little to learn from: {'; '.join(missing)} ({'; '.join(task_lines(data.tasks))})",
            where="--servers",
            remedy=way_on(servers, data.tasks),
        )
    return data


def way_on(servers: ExploredServers, tasks: Mapping[str, Sequence[Task]]) -> str:
    """Return the command that works with so few tasks."""
    if all(len(tasks.get(split, ())) >= least for split, least in LEAST.items()):
        return f"a pretrained model learns from fewer: {servers.with_a_model}"
    return f"let a model write them: {servers.written_by_a_model}"


def within_reach(facts: Sequence[Fact]) -> Callable[[Walk], bool]:
    """Return what says whether a network of this size can find the answer of a walk: in fields that have a
    name, not by counting or calculating, and after few calls. Nor is a field asked for that has a few values
    for many things: to guess it pays better than to copy it, and GRPO learns them by heart."""
    told: dict[tuple[str, str], Counter[str]] = {}
    for fact in facts:
        for leaf in fact.leaves:
            told.setdefault((fact.spec.dotted, leaf.expression), Counter())[str(leaf.value)] += 1
    guessed = [
        field_of_tool
        for field_of_tool, times in told.items()
        if len(times) <= _FEW_VALUES and times.total() >= _MANY_THINGS * len(times)
    ]

    def is_within_reach(walk: Walk) -> bool:
        answers = [seen["value"] for seen in walk.seen]
        references = [*answers, *(reference for step in walk.steps for _, reference in step.links)]
        few = {
            Leaf(expression, "").at_step(number)
            for number, step in enumerate(walk.steps, 1)
            for tool, expression in guessed
            if tool == step.fact.spec.dotted
        }
        return (
            len(walk.steps) <= _MOST_CALLS
            and few.isdisjoint(answers)
            and not any(map(_COUNTED.search, references))
        )

    return is_within_reach


def disjoint(tasks: Mapping[str, Sequence[Task]]) -> dict[str, tuple[Task, ...]]:
    """Return the tasks without those that name an entity of another side. Exploring keeps apart what is asked
    about, but a question may begin with what is asked about elsewhere, or tell things apart by it: training
    leaves out what a held-out task asks about, and no other split keeps a task that names what training
    names.
    """
    constants = _constant_arguments(tasks)
    asked = {
        entity
        for split, members in tasks.items()
        if split != "train"
        for task in members
        for entity in _asked_about(task, constants)
    }
    train = tuple(task for task in tasks["train"] if not _names(task, asked, constants))
    trained = {entity for task in train for entity in _entities(task, constants)}
    others = {
        split: tuple(task for task in members if not _names(task, trained, constants))
        for split, members in tasks.items()
        if split != "train"
    }
    return {"train": train, **others}


def balanced(tasks: Sequence[Task], *, least: int) -> tuple[Task, ...]:
    """Return the tasks, but `least` of them, without those of two calls at once that make tasks of several
    calls more than three of five, and without the last of the others that make them less than half. A network
    that sees little else answers everything twice, and only those that take several calls can gain."""
    several = [task for task in tasks if _needs_several_calls(task)]
    at_once = [task.id for task in several if task.extra_info.get("class") == "parallel"]
    others = [task.id for task in tasks if not _needs_several_calls(task)]
    most = round(_MOST_OF_SEVERAL_CALLS / (1 - _MOST_OF_SEVERAL_CALLS) * len(others))
    spare = max(0, len(tasks) - least)
    left_out = {
        *at_once[max(0, len(at_once) - min(spare, max(0, len(several) - most))) :],
        *others[max(0, len(others) - min(spare, max(0, len(others) - len(several)))) :],
    }
    return tuple(task for task in tasks if task.id not in left_out)


def with_values_alone(task: Task) -> Task:
    """Return a task that asks of two things with an answer that does not say their names again, in the order
    in which they are asked for: to copy four texts in turn is more than a network of this size learns."""
    check = task.truth.final_answer
    if check is None or check.type != "pairs":
        return task
    alone = check.model_copy(update={"type": "list", "value": [*check.value.values()]})
    truth = task.truth.model_copy(update={"final_answer": alone})
    spec = task.reward_spec.model_copy(update={"ground_truth": truth})
    return stated(task.model_copy(update={"reward_spec": spec}))


def _constant_arguments(tasks: Mapping[str, Sequence[Task]]) -> set[str]:
    """Arguments that say nothing of an entity: no call of the tool has another value there, or another
    parameter says what it is about."""
    calls = [json.loads(task.extra_info["about"]) for members in tasks.values() for task in members]
    values = values_of(calls)
    subjects = {
        value
        for of_tool in values.values()
        for value in of_tool[widest(of_tool)]
        if len(of_tool[widest(of_tool)]) > 1
    }
    return {v for of_tool in values.values() for of_one in of_tool.values() for v in of_one} - subjects


def _asked_about(task: Task, constants: set[str]) -> set[str]:
    _, arguments = json.loads(task.extra_info["about"])
    return {format_value(value) for value in arguments.values()} - constants


def _entities(task: Task, constants: set[str]) -> set[str]:
    """Return the values that are asked about, and those that the first call of a chain is given."""
    given = {
        format_value(value)
        for step in task.truth.tool_sequence
        for value in step.params.values()
        if not reference_texts(value)
    }
    return given - constants | _asked_about(task, constants)


def _names(task: Task, entities: set[str], constants: set[str]) -> bool:
    """Return True if the task is about one of the entities, or its user says one."""
    text = user_text(task)
    return bool(_entities(task, constants) & entities) or any(stands_in(each, text) for each in entities)


def shortfalls(tasks: Mapping[str, Sequence[Task]], *, facts: int) -> list[str]:
    """Return what is too little, each with how much is needed; empty if it is enough."""
    made = {split: len(members) for split, members in tasks.items()}
    missing = [f"{facts} answers to ask about, of {LEAST_FACTS} that are needed"] * (facts < LEAST_FACTS)
    missing += [
        f"{made.get(split, 0)} tasks {where}, of {least} that are needed"
        for split, least, where in (
            ("train", LEAST_TRAIN, "for training"),
            ("heldout", LEAST_HELDOUT, "held out"),
        )
        if made.get(split, 0) < least
    ]
    everything = [task for members in tasks.values() for task in members]
    several = sum(_needs_several_calls(task) for task in everything)
    if everything and several < LEAST_OF_SEVERAL_CALLS * len(everything):
        missing.append(
            f"{several} of {len(everything)} tasks need more than one call, of {LEAST_OF_SEVERAL_CALLS:.0%} "
            "that are needed"
        )
    return missing


def facts_line(data: GeneratedData) -> str:
    """Return how much there is to ask about."""
    return f"{_facts(data)} answers of the read-only tools to ask about"


def task_lines(tasks: Mapping[str, Sequence[Task]]) -> list[str]:
    """Return how many tasks there are, by split and kind."""
    lines: list[str] = []
    for split, members in tasks.items():
        kinds = Counter(task_class(task).replace("_", " ") for task in members)
        told = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
        lines.append(f"{split}: {len(members)} tasks" + (f" ({told})" if told else ""))
    return lines


def examples(tasks: Sequence[Task]) -> list[str]:
    """Return the questions of three tasks, of the kinds of which there are most."""
    kinds = Counter(map(task_class, tasks))
    first = {task_class(task): task for task in reversed(tasks)}
    picked = [first.pop(kind) for kind, _ in kinds.most_common(_EXAMPLES)]
    others = (task for task in tasks if task not in picked)
    return [f"such as: {user_text(task)}" for task in [*picked, *islice(others, _EXAMPLES - len(picked))]]


def warnings(tasks: Mapping[str, Sequence[Task]]) -> list[str]:
    """Return what may turn out to be little."""
    made, told = len(tasks["train"]), []
    if made < (enough := _ENOUGH["train"]):
        told.append(f"{made} tasks for training are few: with {enough} the gain is surer")
    several = sum(map(_needs_several_calls, tasks["train"]))
    if several < _ENOUGH_OF_SEVERAL_CALLS * made:
        told.append(
            f"{several} of {made} tasks for training need more than one call: only those can gain by GRPO, "
            f"so expect little if they are under {_ENOUGH_OF_SEVERAL_CALLS:.0%}"
        )
    return told


def _facts(data: GeneratedData) -> int:
    return sum(of_split["facts"] for of_split in data.entities.values())


def _needs_several_calls(task: Task) -> bool:
    return len(task.truth.tool_sequence) > 1
