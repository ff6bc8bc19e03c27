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
from typing import Any

from pydantic import Field, ValidationError

from mcpagent.core.records import JsonObject, OpenRecord, Record, describe
from mcpagent.core.seeds import derive_seed
from mcpagent.core.shown_values import result_value
from mcpagent.core.tasks import Complexity
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.json_stream import read_records
from mcpagent.storage.yaml_file import read_yaml, validate_yaml
from mcpagent.synth.tasks.inspect import FamiliarComplexity
from mcpagent.synth.tasks.run import CallCache
from mcpagent.tools.probes.arguments import harmless_arguments, known_values

_ROUNDS = 3  # the second calls what the first one found values for
_LIST_SHOWN = 3  # items of a list in one excerpt, drawn anew for each sample
_EXCERPT_CHARS = 500
_PLACEHOLDER = "example"


@dataclass(frozen=True)
class Observation:
    """A read-only call and its result."""

    tool: str
    arguments: JsonObject
    value: Any

    def excerpt(self, rng: Random) -> str:
        """One line; of each long list a few items, so that samples differ."""
        shown = json.dumps(_thinned(self.value, rng), ensure_ascii=False)[:_EXCERPT_CHARS]
        return f"- {self.tool}({json.dumps(self.arguments)}) answers {shown}"


async def observe(cache: CallCache, tools: Iterable[ToolSpec]) -> tuple[Observation, ...]:
    """Each read-only tool of `tools` that can be called with what is known, once; failures are left out."""
    waiting = [tool for tool in tools if tool.annotations.read_only]
    values: dict[str, Any] = {}
    seen: list[Observation] = []
    for _ in range(_ROUNDS):
        ready = [tool for tool in waiting if set(tool.input_schema.get("required", ())) <= values.keys()]
        if not ready:
            break
        waiting = [tool for tool in waiting if tool not in ready]
        for tool in ready:
            arguments = harmless_arguments(tool.input_schema, text=_PLACEHOLDER, values=values)
            if arguments is None:
                continue
            async with cache.session() as session:
                result = await session.call(server=tool.server, tool=tool.name, arguments=arguments)
            if not result.is_error:
                seen.append(Observation(tool.dotted, arguments, result_value(result)))
        for observation in seen:
            values = {**known_values(observation.value), **_leaves(observation.value), **values}
    return tuple(seen)


def shape(schema: Any, root: JsonObject | None = None) -> str:
    """Return a JSON schema in few words: `{ticker: string, bars: [{date: string, close: number}]}`."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or not isinstance(root, dict):
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        target = root.get("$defs", {}).get(name, {})
        return name if "$ref" in target else shape(target, _without(root, name))
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    if "properties" in schema:
        required = set(schema.get("required", ()))
        fields = (
            f"{name}{'' if name in required else '?'}: {shape(below, root)}"
            for name, below in schema["properties"].items()
        )
        return "{" + ", ".join(fields) + "}"
    if schema.get("type") == "array":
        return f"[{shape(schema.get('items'), root)}]"
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        return " or ".join(shape(kind, root) for kind in kinds)
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _without(root: JsonObject, name: str) -> JsonObject:
    """The schema in which `name` is spelt out no further: it may contain itself."""
    return {**root, "$defs": {**root.get("$defs", {}), name: {"type": name}}}


def _leaves(value: Any) -> JsonObject:
    """The first text of each field name, wherever it stands."""
    texts: JsonObject = {}
    pending = [value]
    while pending:
        node = pending.pop(0)
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            for name, below in node.items():
                if isinstance(below, str):
                    texts.setdefault(name, below)
                else:
                    pending.append(below)
    return texts


def _thinned(value: Any, rng: Random) -> Any:
    if isinstance(value, dict):
        return {name: _thinned(below, rng) for name, below in value.items()}
    if isinstance(value, list):
        indices = sorted(rng.sample(range(len(value)), min(_LIST_SHOWN, len(value))))
        return [_thinned(value[index], rng) for index in indices]
    return value


_BLANK = re.compile(r"\{\{(\w+)\}\}")
_BLANKS = {
    "generate.system": set(),
    "generate.user": {"complexity", "domain", "steps", "max_tools", "idea", "tools", "observations"},
    "repair": {"stage", "code", "detail"},
    "judge.system": {"lens"},
    "judge.user": {"user_prompt", "calls", "answer", "reference_answer"},
}


class Pair(Record):
    """A system message and a user message, with places to fill in."""

    system: str
    user: str


class PromptTexts(Record):
    """Every text that the model is told."""

    generate: Pair
    repair: str
    judge: Pair
    lenses: tuple[str, ...] = Field(min_length=1)


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


_STEPS: Mapping[Complexity, tuple[int, int]] = {"simple": (1, 1), "moderate": (2, 3), "complex": (3, 99)}


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What the tasks are to be. `may_write` lets plans call tools that are not read-only."""

    max_tools: int
    max_turns: int
    domains: Sequence[str] = ()
    complexities: Sequence[Complexity] = ()
    curriculum: Sequence[CurriculumPrompt] = ()
    distractors: int | None = None
    may_write: bool = True
    seed: int = 0

    def steps(self, complexity: Complexity) -> tuple[int, int]:
        """Return the fewest and the most calls of a plan; a low `max_tools` lowers both."""
        low, high = _STEPS[complexity]
        return min(low, self.max_tools), min(high, self.max_tools)


_MOST_TOOLS = 40  # shown to the model at once; of a larger catalog each sample sees another part


@dataclass(frozen=True, kw_only=True)
class Commission:
    """One sample: what is asked for, and the messages that ask for it."""

    number: int
    complexity: Complexity
    domain: str
    curriculum_id: str | None
    messages: tuple[JsonObject, ...]


@dataclass(frozen=True, kw_only=True)
class PromptBuilder:
    """Commissions by number; each depends on the seed and its number alone."""

    prompts: Prompts
    usable: Sequence[ToolSpec]
    observations: Sequence[Observation]
    settings: TaskSettings

    def __call__(self, number: int) -> Commission:
        """What sample `number` asks for: the same for the same seed."""
        settings = self.settings
        rng = Random(derive_seed(settings.seed, "commission", number))
        idea = settings.curriculum[number % len(settings.curriculum)] if settings.curriculum else None
        complexity = idea.complexity if idea else rng.choice(settings.complexities)
        domain = rng.choice(settings.domains)
        likely = (
            [t for alias in idea.likely_tools if (t := resolve_alias(alias, self.usable))] if idea else []
        )
        low, high = settings.steps(complexity)
        texts = self.prompts.texts.generate
        user = fill_in(
            texts.user,
            complexity=complexity,
            domain=domain,
            steps=f"{low}" if low == high else f"{low} to {high}",
            max_tools=settings.max_tools,
            idea=_idea(idea, likely),
            tools="\n".join(map(_described, self._shown(likely, rng))),
            observations="\n".join(seen.excerpt(rng) for seen in self.observations) or "- nothing yet",
        )
        return Commission(
            number=number,
            complexity=complexity,
            domain=domain,
            curriculum_id=idea.id if idea else None,
            messages=({"role": "system", "content": texts.system}, {"role": "user", "content": user}),
        )

    def _shown(self, likely: Sequence[ToolSpec], rng: Random) -> list[ToolSpec]:
        if len(self.usable) <= _MOST_TOOLS:
            return list(self.usable)
        shown = {tool.dotted for tool in [*likely, *rng.sample(self.usable, _MOST_TOOLS)]}
        return [tool for tool in self.usable if tool.dotted in shown]


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


def _described(tool: ToolSpec) -> str:
    kind = "" if tool.annotations.read_only else " (changes something)"
    gives = f" -> {shape(tool.output_schema)}" if tool.output_schema else ""
    return (
        f"- server {tool.server}, tool {tool.name}{kind}: {tool.description.strip()}\n"
        f"  {shape(tool.input_schema) if tool.input_schema.get('properties') else '{}'}{gives}"
    )
