"""The words for the model: a YAML file, data that can be edited."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import shown_value
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.yaml_file import read_yaml, validate_yaml
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.tasks.run import NO_NAME, CallCache
from mcpagent.tools.probes.arguments import harmless_arguments

_SHOWN_OF_EACH = 3  # results of each tool
_SHOWN_CHARS = 3000  # of one result
_LINE_CHARS = 160  # of what a tool is for, where its name would nearly do


@dataclass(frozen=True)
class Observation:
    """A call of a tool that only reads, and what references see of its result, as JSON; the text of an
    error."""

    tool: str
    arguments: JsonObject
    shown: str
    is_error: bool = False

    @property
    def text(self) -> str:
        """Return what the model is shown of it."""
        what = "fails" if self.is_error else "step"
        cut = " ... (cut here)" if len(self.shown) > _SHOWN_CHARS else ""
        shown = f"{self.shown[:_SHOWN_CHARS]}{cut}"
        return f"{self.tool}({json.dumps(self.arguments, ensure_ascii=False)})\n{what} = {shown}"


async def observe(cache: CallCache, *, seed: int) -> tuple[Observation, ...]:
    """Return some results of each tool that only reads, as exploring finds calls that work, and what it says
    of a name that nothing has."""
    graph = await learn(cache, seed=seed)
    calls: list[tuple[ToolSpec, JsonObject]] = []
    for tool in cache.specs:
        if tool.annotations.read_only:
            facts = [fact.arguments for fact in graph.facts if fact.spec is tool]
            nothing = harmless_arguments(tool.input_schema, text=NO_NAME)
            calls += [(tool, arguments) for arguments in facts[:_SHOWN_OF_EACH]]
            calls += [(tool, nothing)] if nothing and nothing not in facts else []
    seen: list[Observation] = []
    async with cache.session(only_reads=True) as session:
        for tool, arguments in calls:
            result = await session.call(server=tool.server, tool=tool.name, arguments=arguments)
            shown = result.content if result.is_error else json.dumps(shown_value(result), ensure_ascii=False)
            seen.append(Observation(tool.dotted, arguments, shown, result.is_error))
    return tuple(seen)


_BLANK = re.compile(r"\{\{(\w+)\}\}")
_BLANKS = {
    "generate.system": set(),
    "generate.user": {
        *("wish", "persona", "domain", "focus", "questions", "tools", "others", "observations"),
    },
    "repair": {"stage", "code", "detail"},
    "review.system": set(),
    "review.user": {"question", "calls", "answer", "tools"},
    "solve.system": set(),
    "solve.user": {"question", "tools", "others", "observations"},
}


class Pair(Record):
    """A system message and a user message, with places to fill in."""

    system: str
    user: str


class TaskClass(Record):
    """A class of task: how many samples ask for it in proportion, the fewest and the most calls of its plan,
    and what the model is told. `needs` names what the servers must have: `two_servers`, `writes`."""

    share: int = Field(ge=1)
    steps: tuple[int, int]
    wish: str
    needs: Literal["two_servers", "writes"] | None = None


class PromptTexts(Record):
    """Every text that the model is told."""

    generate: Pair
    repair: str
    review: Pair
    solve: Pair
    personas: tuple[str, ...] = Field(min_length=1)
    classes: Mapping[str, TaskClass] = Field(min_length=1)


@dataclass(frozen=True)
class Prompts:
    """The texts of a file, and the hash of the file."""

    texts: PromptTexts
    sha256: str


def load_prompts(path: Path) -> Prompts:
    """Raise UserError with file and line, also for a blank that nothing fills."""
    source = read_yaml(path)
    texts = validate_yaml(PromptTexts, source)
    for place, blanks in _BLANKS.items():
        keys = tuple(place.split("."))
        text: object = texts
        for key in keys:
            text = getattr(text, key)
        unknown = sorted(set(_BLANK.findall(str(text))) - blanks)
        if unknown:
            raise UserError(
                f"nothing fills {{{{{unknown[0]}}}}} in {place}",
                where=f"{path}:{source.line(keys)}",
                remedy=f"there are: {', '.join(sorted(blanks)) or 'none here'}",
            )
    return Prompts(texts, sha256(path.read_bytes()).hexdigest())


def fill_in(text: str, **values: object) -> str:
    """`text` with its `{{name}}` blanks filled; what is filled in is not read again."""
    return _BLANK.sub(lambda blank: str(values[blank[1]]), text)


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The settings of the tasks to write. `may_write` lets plans call tools that are not read-only; tasks
    that need none of the `heldout_servers` offer no tool of theirs."""

    max_tools: int
    max_turns: int
    domains: Sequence[str] = ()
    distractors: int | None = None
    may_write: bool = True
    heldout_servers: Sequence[str] = ()
    seed: int = 0


_MOST_TOOLS = 40  # shown to the model at once; of a larger catalog each sample sees another part
_MOST_QUESTIONS = 40  # that exist


@dataclass(frozen=True, kw_only=True)
class Commission:
    """One sample: what is asked for, and the messages that ask for it. `kind` is a class of task."""

    number: int
    kind: str
    domain: str
    messages: tuple[JsonObject, ...]


@dataclass(frozen=True, kw_only=True)
class PromptBuilder:
    """The writer of what the model is told; each commission depends on the seed, its number and the
    `questions` that exist alone. Plans may call the `usable` tools; tasks offer `others` too."""

    prompts: Prompts
    usable: Sequence[ToolSpec]
    others: Sequence[ToolSpec] = ()
    observations: Sequence[Observation]
    settings: TaskSettings
    questions: Sequence[str] = ()

    def __call__(self, number: int) -> Commission:
        """Return the commission of sample `number`: the same for the same seed."""
        settings, texts = self.settings, self.prompts.texts
        rng = Random(derive_seed(settings.seed, "commission", number))
        kind = self._kind(number)
        domain = rng.choice(settings.domains)
        shown = self._shown(rng)
        low, high = (min(count, settings.max_tools) for count in texts.classes[kind].steps)
        user = fill_in(
            texts.generate.user,
            wish=f"{texts.classes[kind].wish.strip()} It takes {low} to {high} calls.",
            persona=rng.choice(texts.personas),
            domain=domain,
            focus=self.usable[number % len(self.usable)].dotted,
            questions="\n".join(f"- {text}" for text in self.questions[-_MOST_QUESTIONS:]) or "- none yet",
            tools=_described(shown),
            others=_named(self.others),
            observations=self._observed(shown),
        )
        messages = _messages(texts.generate.system, user)
        return Commission(number=number, kind=kind, domain=domain, messages=messages)

    def _kind(self, number: int) -> str:
        """Return the class of a sample: after each round of samples every class has its share."""
        servers = len({tool.server for tool in self.usable})
        has = {
            None: True,
            "two_servers": servers > 1,
            "writes": any(not tool.annotations.read_only for tool in self.usable),
        }
        classes = self.prompts.texts.classes
        kinds = [kind for kind, each in classes.items() if has[each.needs] for _ in range(each.share)]
        turn, place = divmod(number, len(kinds))
        Random(derive_seed(self.settings.seed, "classes", turn)).shuffle(kinds)
        return kinds[place]

    def solve(self, question: str, offered: Sequence[str]) -> tuple[JsonObject, ...]:
        """Return the messages that ask for a way to the answer from the question alone."""
        tools = [tool for tool in self.usable if tool.dotted in offered]
        others = [tool for tool in self.others if tool.dotted in offered]
        texts = self.prompts.texts.solve
        told = {
            "tools": _described(tools),
            "others": _named(others),
            "observations": self._observed(tools),
        }
        return _messages(texts.system, fill_in(texts.user, question=question, **told))

    def review(
        self, question: str, calls: str, answer: str, offered: Sequence[str]
    ) -> tuple[JsonObject, ...]:
        """Return the messages that ask whether what was computed is the answer."""
        texts = self.prompts.texts.review
        tools = _named([tool for tool in (*self.usable, *self.others) if tool.dotted in offered])
        told = {"question": question, "calls": calls, "answer": answer, "tools": tools}
        return _messages(texts.system, fill_in(texts.user, **told))

    def _shown(self, rng: Random) -> list[ToolSpec]:
        if len(self.usable) <= _MOST_TOOLS:
            return list(self.usable)
        shown = {tool.dotted for tool in rng.sample(self.usable, _MOST_TOOLS)}
        return [tool for tool in self.usable if tool.dotted in shown]

    def _observed(self, tools: Sequence[ToolSpec]) -> str:
        names = {tool.dotted for tool in tools}
        return "\n\n".join(seen.text for seen in self.observations if seen.tool in names) or "- nothing yet"


def _messages(system: str, user: str) -> tuple[JsonObject, ...]:
    return {"role": "system", "content": system}, {"role": "user", "content": user}


def _named(tools: Sequence[ToolSpec]) -> str:
    """Return what tools are for, a line each."""
    lines = [f"- {tool.dotted}: {' '.join(tool.description.split())[:_LINE_CHARS]}" for tool in tools]
    return "\n".join(lines) or "- none"


def _described(tools: Sequence[ToolSpec]) -> str:
    return "\n".join(
        f"- server {tool.server}, tool {tool.name}"
        f"{'' if tool.annotations.read_only else ' (changes something)'}: {tool.description.strip()}\n"
        f"  arguments: {json.dumps(tool.input_schema, ensure_ascii=False)}"
        for tool in tools
    )
