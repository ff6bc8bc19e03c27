"""The words for the model: a YAML file, data that can be edited."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field, ValidationError

from mcpagent.core.records import JsonObject, OpenRecord, Record, describe
from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import shown_value
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.json_stream import read_records
from mcpagent.storage.yaml_file import read_yaml, validate_yaml
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.tasks.inspect import FamiliarComplexity
from mcpagent.synth.tasks.run import NO_NAME, CallCache
from mcpagent.tools.probes.arguments import harmless_arguments

_SHOWN_OF_EACH = 3  # results of each tool
_SHOWN_CHARS = 3000  # of one result


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
            facts = [fact.arguments for fact in graph.facts if fact.spec is tool and fact.page == 1]
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
    "generate.user": {"wish", "persona", "domain", "idea", "questions", "tools", "observations"},
    "repair": {"stage", "code", "detail"},
    "review.system": set(),
    "review.user": {"question", "calls", "answer"},
    "solve.system": set(),
    "solve.user": {"question", "tools", "observations"},
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


class CurriculumPrompt(OpenRecord):
    """`likely_tools` are loose names of tools."""

    id: str
    complexity: FamiliarComplexity
    user_prompt: str
    likely_tools: tuple[str, ...] = ()
    why_multi_turn: str = ""


def load_curriculum(path: Path) -> tuple[CurriculumPrompt, ...]:
    """Raise UserError with file and line."""
    prompts: list[CurriculumPrompt] = []
    for line, record in read_records(path):
        try:
            prompts.append(CurriculumPrompt.model_validate(record))
        except ValidationError as error:
            problems = "; ".join(describe(detail) for detail in error.errors())
            raise UserError(problems, where=f"{path}:{line}") from None
    if not prompts:
        raise UserError("holds no prompts", where=str(path))
    return tuple(prompts)


def resolve_alias(alias: str, tools: Iterable[ToolSpec]) -> ToolSpec | None:
    """Return the tool that a loose name means (`fmp.quote`, `polygon news`); None if none or several are
    near."""
    tools = list(tools)
    by_name = {name: tool for tool in tools for name in (tool.dotted, tool.name)}
    if alias in by_name:
        return by_name[alias]
    words = _words(alias)
    # The fewest other words win: `fmp.quote` is fmp_get_quote before fmp_get_quote_history.
    having = sorted((len(_words(tool.dotted)), tool.dotted) for tool in tools if words <= _words(tool.dotted))
    if having and (len(having) == 1 or having[0][0] < having[1][0]):
        return by_name[having[0][1]]
    near = get_close_matches(alias, [tool.dotted for tool in tools], n=1, cutoff=0.75)
    return by_name[near[0]] if near else None


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The settings of the tasks to write. `may_write` lets plans call tools that are not read-only."""

    max_tools: int
    max_turns: int
    domains: Sequence[str] = ()
    curriculum: Sequence[CurriculumPrompt] = ()
    distractors: int | None = None
    may_write: bool = True
    seed: int = 0


_MOST_TOOLS = 40  # shown to the model at once; of a larger catalog each sample sees another part
_MOST_QUESTIONS = 40  # that exist


@dataclass(frozen=True, kw_only=True)
class Commission:
    """One sample: what is asked for, and the messages that ask for it. `kind` is a class of task; None if a
    curriculum says what is wanted."""

    number: int
    kind: str | None
    domain: str
    idea: CurriculumPrompt | None
    messages: tuple[JsonObject, ...]


@dataclass(frozen=True, kw_only=True)
class PromptBuilder:
    """The writer of what the model is told; each commission depends on the seed, its number and the
    `questions` that exist alone."""

    prompts: Prompts
    usable: Sequence[ToolSpec]
    observations: Sequence[Observation]
    settings: TaskSettings
    questions: Sequence[str] = ()

    def __call__(self, number: int) -> Commission:
        """Return the commission of sample `number`: the same for the same seed."""
        settings, texts = self.settings, self.prompts.texts
        rng = Random(derive_seed(settings.seed, "commission", number))
        idea = settings.curriculum[number % len(settings.curriculum)] if settings.curriculum else None
        kind = None if idea else self._kind(number)
        likely = (
            [t for alias in idea.likely_tools if (t := resolve_alias(alias, self.usable))] if idea else []
        )
        domain = rng.choice(settings.domains)
        shown = self._shown(likely, rng)
        user = fill_in(
            texts.generate.user,
            wish=texts.classes[kind].wish.strip() if kind else "",
            persona=rng.choice(texts.personas),
            domain=domain,
            idea=_idea(idea, likely),
            questions="\n".join(f"- {text}" for text in self.questions[-_MOST_QUESTIONS:]) or "- none yet",
            tools=_described(shown),
            observations=self._observed(shown),
        )
        messages = _messages(texts.generate.system, user)
        return Commission(number=number, kind=kind, domain=domain, idea=idea, messages=messages)

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
        texts = self.prompts.texts.solve
        told = {"tools": _described(tools), "observations": self._observed(tools)}
        return _messages(texts.system, fill_in(texts.user, question=question, **told))

    def review(self, question: str, calls: str, answer: str) -> tuple[JsonObject, ...]:
        """Return the messages that ask whether what was computed is the answer."""
        texts = self.prompts.texts.review
        return _messages(texts.system, fill_in(texts.user, question=question, calls=calls, answer=answer))

    def _shown(self, likely: Sequence[ToolSpec], rng: Random) -> list[ToolSpec]:
        if len(self.usable) <= _MOST_TOOLS:
            return list(self.usable)
        shown = {tool.dotted for tool in [*likely, *rng.sample(self.usable, _MOST_TOOLS)]}
        return [tool for tool in self.usable if tool.dotted in shown]

    def _observed(self, tools: Sequence[ToolSpec]) -> str:
        names = {tool.dotted for tool in tools}
        return "\n\n".join(seen.text for seen in self.observations if seen.tool in names) or "- nothing yet"


def _messages(system: str, user: str) -> tuple[JsonObject, ...]:
    return {"role": "system", "content": system}, {"role": "user", "content": user}


def unresolved_aliases(curriculum: Sequence[CurriculumPrompt], tools: Sequence[ToolSpec]) -> list[str]:
    """Return the loose tool names that name none of `tools`."""
    aliases = sorted({alias for prompt in curriculum for alias in prompt.likely_tools})
    return [alias for alias in aliases if resolve_alias(alias, tools) is None]


def _idea(idea: CurriculumPrompt | None, likely: Sequence[ToolSpec]) -> str:
    if idea is None:
        return ""
    lines = [f"Take up this idea, as far as the tools allow it: {idea.user_prompt}"]
    if likely:
        lines.append(f"Likely tools: {', '.join(tool.dotted for tool in likely)}")
    if idea.why_multi_turn:
        lines.append(f"Why it needs several calls: {idea.why_multi_turn}")
    return "\n".join(lines)


def _described(tools: Sequence[ToolSpec]) -> str:
    return "\n".join(
        f"- server {tool.server}, tool {tool.name}"
        f"{'' if tool.annotations.read_only else ' (changes something)'}: {tool.description.strip()}\n"
        f"  arguments: {json.dumps(tool.input_schema, ensure_ascii=False)}"
        for tool in tools
    )
