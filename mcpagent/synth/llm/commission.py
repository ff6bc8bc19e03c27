"""What each sample asks the model for: which complexity, about what, with which tools in sight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Complexity
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.llm.check import steps_for
from mcpagent.synth.llm.curriculum import CurriculumPrompt, resolve_alias
from mcpagent.synth.llm.observe import Observation, shape
from mcpagent.synth.llm.prompts import Prompts, fill_in

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
class Commissioner:
    """Commissions by number; each depends on the seed and its number alone."""

    prompts: Prompts
    usable: Sequence[ToolSpec]
    observations: Sequence[Observation]
    domains: Sequence[str]
    complexities: Sequence[Complexity]
    curriculum: Sequence[CurriculumPrompt]
    max_tools: int
    seed: int

    def __call__(self, number: int) -> Commission:
        rng = Random(derive_seed(self.seed, "commission", number))
        idea = self.curriculum[number % len(self.curriculum)] if self.curriculum else None
        complexity = idea.complexity if idea else rng.choice(self.complexities)
        domain = rng.choice(self.domains)
        likely = (
            [t for alias in idea.likely_tools if (t := resolve_alias(alias, self.usable))] if idea else []
        )
        low, high = steps_for(complexity, self.max_tools)
        texts = self.prompts.texts.generate
        user = fill_in(
            texts.user,
            complexity=complexity,
            domain=domain,
            steps=f"{low}" if low == high else f"{low} to {high}",
            max_tools=self.max_tools,
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
        chosen = {tool.dotted for tool in [*likely, *rng.sample(self.usable, _MOST_TOOLS)]}
        return [tool for tool in self.usable if tool.dotted in chosen]


def unresolved_aliases(curriculum: Sequence[CurriculumPrompt], tools: Sequence[ToolSpec]) -> list[str]:
    """The loose tool names that name none of `tools`."""
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
