"""What searching for tools saves and costs: python -m benchmarks.tool_search [--tasks N] [--tools 20 100].

Records (invoices, beehives, court cases, ...) behind as many tools as asked for; two calls answer a question.
The scripted policy plays each task twice: with every tool offered, and with nothing but `search_tools`, where
it calls only what a search returned, and searches with the user's words and those of tools found before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import Field

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo.warm_start import EmbeddedShape, train_tokenizer
from mcpagent.env.offer import Discovery, offer
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.agent import AgentSettings
from mcpagent.rollout.collector import attempts, collect
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from mcpagent.train.sft import demonstration_samples

SIZES = (20, 100, 500)
NOUNS = (
    *("invoice", "contract", "shipment", "flight", "parcel", "loan", "patent", "recipe", "course", "exam"),
    *("meeting", "subscription", "insurance claim", "apartment", "festival", "satellite", "tram", "bridge"),
    *("beehive", "playlist", "tournament", "stadium", "court case", "passport", "tax return", "donation"),
    *(
        "wind turbine",
        "vaccine batch",
        "research grant",
        "podcast",
        "museum exhibit",
        "greenhouse",
        "vineyard",
    ),
    *("lighthouse", "ferry", "elevator", "boiler", "drone", "sculpture", "translation", "survey", "backup"),
    *("domain", "certificate", "printer", "laptop", "badge", "locker", "scholarship", "violin"),
)
# By suffix of the tool: what it says of itself, and how people ask, none of them with its name in mind.
FACTS: dict[str, tuple[str, str, str]] = {
    "status": (
        "Whether a {} is open, paused or closed.",
        "Is the {} of {} still open?",
        "Is {1}'s {0} closed?",
    ),
    "due_date": (
        "Date on which a {} is due.",
        "When is the {} of {} due?",
        "By which date is {1}'s {0} due?",
    ),
    "cost": ("Cost of a {} in euros.", "How much did the {} of {} cost?", "How many euros is {1}'s {0}?"),
    "city": ("City in which a {} is kept.", "In which city is the {} of {}?", "What city is {1}'s {0} in?"),
    "weight": ("Weight of a {} in kilograms.", "What weight has the {} of {}?", "{1}'s {0}: kilograms?"),
    "color": ("Color of a {}.", "What color is the {} of {}?", "The {} of {} has which color?"),
    "rating": ("Rating of a {} by users.", "How do users rate the {} of {}?", "How is {1}'s {0} rated?"),
    "supplier": ("Supplier of a {}.", "Who supplied the {} of {}?", "Which supplier made {1}'s {0}?"),
}
WORDS = ("amber", "bronze", "cobalt", "denim", "ebony", "fawn", "ginger", "hazel", "indigo", "jade")
PEOPLE = ("Marta", "Olsen", "Ines", "Kenji", "Priya", "Tomas", "Aisha", "Lukas", "Noemi", "Pavel")
_READ_ONLY = ToolAnnotations(read_only_hint=True)
Person = Annotated[str, Field(description="Who it belongs to")]


@dataclass(frozen=True)
class Row:
    """Means over the tasks; success in 0..1, tokens of the whole context of an episode."""

    tools: int
    success_all: float
    success_search: float
    tokens_all: float
    tokens_search: float
    searches: float

    @property
    def share(self) -> float:
        """Tokens with search, of those with every tool."""
        return self.tokens_search / self.tokens_all


def world() -> MCPServer[Any]:
    """Ten tools for each noun: one finds a record, eight tell a fact of it, one lists."""
    server = MCPServer("office", log_level="ERROR")
    for noun in NOUNS:
        for name, function, description in _tools(noun):
            server.add_tool(
                function,
                name=name,
                description=description,
                annotations=_READ_ONLY,
                structured_output=name.endswith("_find"),
            )
    return server


def _tools(noun: str) -> list[tuple[str, Any, str]]:
    key = noun.replace(" ", "_")
    record = Annotated[str, Field(description=f"Id of the {noun}")]

    def find(person: Person) -> dict[str, str]:
        return {"id": _id(noun, person)}

    def everything(limit: int = 10) -> list[str]:
        return [_id(noun, person) for person in PEOPLE[:limit]]

    def telling(fact: str) -> Any:
        def tell(record_id: str) -> str:
            return _fact(fact, record_id)

        tell.__annotations__["record_id"] = record  # of each noun's own
        return tell

    told = [(f"{key}_{fact}", telling(fact), text.format(noun)) for fact, (text, *_) in FACTS.items()]
    return [
        (f"{key}_find", find, f"Find the {noun} that belongs to a person."),
        *told,
        (f"{key}_list", everything, f"Ids of all {noun} records."),
    ]


def _id(noun: str, person: str) -> str:
    return f"{noun[:2].upper()}-{random.Random(noun + person).randint(1000, 9999)}"


def _fact(fact: str, record_id: str) -> str:
    return random.Random(fact + record_id).choice(WORDS)


def make_tasks(names: Sequence[str], *, count: int, seed: int) -> list[Task]:
    """Questions on the records that these tools know."""
    rng = random.Random(seed)
    nouns = [noun for noun in NOUNS if f"office.{noun.replace(' ', '_')}_find" in names]
    return [_task(rng, rng.choice(nouns), names, number) for number in range(count)]


def _task(rng: random.Random, noun: str, names: Sequence[str], number: int) -> Task:
    person, fact, key = rng.choice(PEOPLE), rng.choice(list(FACTS)), noun.replace(" ", "_")
    question = rng.choice(FACTS[fact][1:]).format(noun, person)
    plan = [
        {"step": 1, "server": "office", "tool": f"{key}_find", "params": {"person": person}},
        {"step": 2, "server": "office", "tool": f"{key}_{fact}", "params": {"record_id": "${step1.id}"}},
    ]
    truth = {
        "task_id": f"task-{number}",
        "tool_sequence": plan,
        "final_answer": {"type": "string", "value": _fact(fact, _id(noun, person))},
    }
    return Task.model_validate(
        {
            "prompt": [{"role": "user", "content": question}],
            "reward_spec": {"ground_truth": truth},
            "extra_info": {"tools": list(names)},
        }
    )


async def measure(sizes: Sequence[int], *, count: int, seed: int = 0) -> list[Row]:
    """A row for each number of tools."""
    async with ToolPool([InProcessServer(name="office", server=world())]) as pool:
        everything = [spec.dotted for spec in pool.tools.values()]
        schemas = [str(schema) for schema in offer(pool.tools, None, task_id="all").schemas]
        tokenizer = train_tokenizer(schemas, vocab_size=EmbeddedShape().vocab_size, catalog_hash="")
        renderer = Renderer(tokenizer, name="embedded")
        rows: list[Row] = []
        for size in sizes:
            tasks = make_tasks(everything[:size], count=count, seed=seed)
            offered, of_offered = await _play(pool, tasks, None, renderer)
            searched, of_searched = await _play(pool, tasks, Discovery(), renderer)
            rows.append(
                Row(
                    tools=size,
                    success_all=_success(offered),
                    success_search=_success(searched),
                    tokens_all=fmean(of_offered),
                    tokens_search=fmean(of_searched),
                    searches=fmean(len(t.searches) for t in searched),
                )
            )
        return rows


async def _play(
    pool: ToolPool, tasks: Sequence[Task], discovery: Discovery | None, renderer: Renderer
) -> tuple[list[Trajectory], list[int]]:
    played = await collect(
        list(attempts(tasks, per_task=1, seed=0)),
        policy=GoldPolicy(tasks, searches_by_name=False),
        tools=pool,
        settings=AgentSettings(sampling=Sampling(), discovery=discovery),
    )
    samples = demonstration_samples(
        played, {task.id: task for task in tasks}, catalog=pool.tools, renderer=renderer, discovery=discovery
    )
    return played, [len(sample.token_ids_T) for sample in samples]


def _success(trajectories: Sequence[Trajectory]) -> float:
    return fmean(bool(t.is_success) for t in trajectories)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--tools", type=int, nargs="+", default=list(SIZES))
    arguments = parser.parse_args()
    print("tools   success: all  search    tokens: all    search   share   searches")
    for row in asyncio.run(measure(arguments.tools, count=arguments.tasks)):
        print(
            f"{row.tools:5d}   {row.success_all:12.1%}  {row.success_search:6.1%}  {row.tokens_all:13,.0f}  "
            f"{row.tokens_search:8,.0f}  {row.share:6.1%}  {row.searches:9.2f}"
        )


if __name__ == "__main__":
    main()
