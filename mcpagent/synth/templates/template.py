"""Task templates: YAML files that say what a task asks, which calls answer it and how it is judged.

A template set is a folder: `pools.yaml` names the entities, every other file is one template or a list of
them. In prompts, parameters and checks `{slot}` is an entity and `${step1.price}` a result of the plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from hashlib import sha256
from operator import or_
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mcpagent.core.placeholders import PlaceholderError, references
from mcpagent.core.records import JsonObject, Record
from mcpagent.core.tasks import AnswerCheck, Complexity, PlanCall, StateCall, StateCheck, Success, TaskLimits
from mcpagent.errors import UserError
from mcpagent.storage.yaml_file import YamlSource, read_yaml, validate_yaml

TaskClass = Literal[
    "single",
    "sequential",
    "parallel",
    "missing_parameter",  # the question lacks what a call needs: ask for it
    "missing_function",  # no offered tool can do it: say so
    "irrelevance",  # nothing is asked that a tool is for
    "error_recovery",  # the call that the question invites fails, and there is another way
    "multi_turn",
]


class Derived(Record):
    """A slot made from another: its first four characters in capitals, a guess at a ticker."""

    of: str

    def value(self, source: str) -> str:
        """Return the guess that `source` leads to."""
        return source[:4].upper()


POOLS_FILE = "pools.yaml"
# `${step1.x}` is a reference and `{3}` belongs to a pattern.
_SLOT = re.compile(r"(?<!\$)\{([a-z_]\w*)\}")


class Cursor(Record):
    """Paging: the result's field `next` goes into the argument `argument` until it is empty."""

    argument: str = "cursor"
    next: str = "next_cursor"


class EntityListing(Record):
    """A call whose result lists entities: the list in the field `items`, each one's value in `field`."""

    server: str
    tool: str
    arguments: JsonObject = Field(default_factory=dict)
    cursor: Cursor | None = None
    items: str
    field: str


class SplitKey(Record):
    """A call about `{value}` whose result (step1) names the entity that decides the split."""

    server: str
    tool: str
    arguments: JsonObject = Field(default_factory=dict)
    value: str


class Pool(Record):
    """Entities of one kind. `keys_of` takes the split keys of another pool as values, `values` states them:
    they are not entities, so every split has all of them. Without `split_key` an entity decides its split
    itself."""

    list: EntityListing | None = None
    keys_of: str | None = None
    values: tuple[Any, ...] | None = None
    split_key: SplitKey | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.list, self.keys_of, self.values)) != 1:
            raise ValueError("a pool takes its values from exactly one of `list`, `keys_of` and `values`")
        if self.list is None and self.split_key is not None:
            raise ValueError("only a `list` has a `split_key`: other values decide their split themselves")
        return self


class TemplateStep(Record):
    """One gold call; steps are numbered from 1 in order."""

    server: str
    tool: str
    params: JsonObject = Field(default_factory=dict)
    user_turn: int = Field(default=0, ge=0)
    alternatives: tuple[PlanCall, ...] = ()
    parallel_group: int | str | None = None
    match: dict[str, JsonObject] = Field(default_factory=dict)


class Template(Record):
    """One kind of task. `success.must_call_tool` defaults to the tool of the last step, `max_turns` to three
    more than the plan needs.

    `fails` is a call that the question invites and that has to fail. With `withhold` the plan is grounded as
    it stands, and then those tools are taken out of the offer: the right answer is none, as it is without a
    plan (`answer: {type: none}`).
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    complexity: Complexity
    weight: float = Field(default=1.0, gt=0)
    prompts: tuple[str, ...] = Field(min_length=1)
    user_turns: tuple[str, ...] = ()
    slots: dict[str, str] = Field(default_factory=dict)
    setup: dict[str, tuple[StateCall, ...]] = Field(default_factory=dict)
    plan: tuple[TemplateStep, ...] = ()
    answer: AnswerCheck | None = None
    reference_answer: str | None = Field(default=None, min_length=1)  # for a judge
    state: dict[str, tuple[StateCheck, ...]] = Field(default_factory=dict)
    success: Success | None = None
    quiet_turns: tuple[int, ...] = ()
    max_turns: int | None = Field(default=None, ge=1)
    limits: TaskLimits = TaskLimits()
    kind: TaskClass | None = Field(default=None, alias="class")
    derived: dict[str, Derived] = Field(default_factory=dict)
    fails: PlanCall | None = None
    withhold: tuple[str, ...] = ()

    @cached_property
    def needed(self) -> Counter[str]:
        """The entities that one task needs of each pool: two slots of one pool never get the same."""
        return Counter(self.slots.values())

    @cached_property
    def plan_json(self) -> list[JsonObject]:
        """The plan with its defaults."""
        return [step.model_dump(mode="json") for step in self.plan]

    @cached_property
    def stated(self) -> JsonObject:
        """The fields that the file states, without defaults."""
        return self.model_dump(mode="json", exclude_unset=True)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.answer is not None and self.answer.type == "none") == bool(self.plan):
            raise ValueError("a template has either a plan or `answer: {type: none}`")
        for prompt in self.prompts:
            missing = sorted(set(self.slots) - slots_in([prompt, *self.user_turns]))
            if missing:
                raise ValueError(f"the prompt {prompt!r} does not name the slots {missing}")
        strange = sorted({d.of for d in self.derived.values()} - set(self.slots))
        if strange:
            raise ValueError(f"`derived` is made from {strange}, which are not slots")
        untold = {f"{step.server}.{step.tool}" for step in self.plan} - set(self.withhold)
        if self.withhold and len(untold) == len({f"{step.server}.{step.tool}" for step in self.plan}):
            raise ValueError("`withhold` does not name a tool of the plan, which could still be carried out")
        unknown = sorted(self._used_slots() - set(self.slots) - set(self.derived))
        if unknown:
            raise ValueError(f"{unknown} are used but not declared under `slots`")
        self._check_references()
        if any(step.user_turn > len(self.user_turns) for step in self.plan):
            raise ValueError(f"a step's user_turn is past the {len(self.user_turns)} later user messages")
        if self.answer is not None and self.answer.model_extra:
            raise ValueError(f"unknown keys in `answer`: {sorted(self.answer.model_extra)}")
        return self

    def _used_slots(self) -> set[str]:
        parts = {"prompts", "user_turns", "setup", "plan", "state", "reference_answer", "answer", "fails"}
        return slots_in(self.model_dump(include=parts))

    def _check_references(self) -> None:
        try:
            for number, step in enumerate(self.plan, start=1):
                late = sorted(n for n in references(step.params) if not 1 <= n < number)
                if late:
                    raise ValueError(f"step {number} refers to step {late[0]}, which has not run by then")
            checks: list[Any] = [self.reference_answer, self.answer.value if self.answer else None]
            checks += [check.model_dump() for group in self.state.values() for check in group]
            unknown = sorted(n for n in references(checks) if not 1 <= n <= len(self.plan))
        except PlaceholderError as error:
            raise ValueError(str(error)) from None
        if unknown:
            raise ValueError(f"a check refers to step {unknown[0]} of a plan with {len(self.plan)} steps")


@dataclass(frozen=True, kw_only=True)
class TemplateSet:
    """A loaded folder. `sha256` is over names and bytes of its files."""

    templates: tuple[Template, ...]
    pools: Mapping[str, Pool]
    sha256: str

    def for_servers(self, names: Collection[str]) -> TemplateSet:
        """Without the templates that need a server which is not in use. Abstain templates go with the others:
        alone they ask nothing."""
        fitting = tuple(t for t in self.templates if self._needs(t) <= set(names))
        useful = fitting if any(t.plan for t in fitting) else ()
        return replace(self, templates=useful)

    @property
    def needed(self) -> Counter[str]:
        """The number of entities of each pool that a split needs for a task of every template."""
        return reduce(or_, (template.needed for template in self.templates), Counter[str]())

    def _needs(self, template: Template) -> set[str]:
        """The servers that a template calls, and those that list its entities."""
        calls = [call for step in template.plan for call in (step, *step.alternatives)]
        needed = {call.server for call in calls} | set(template.setup) | set(template.state)
        for name in template.slots.values():
            pool: Pool | None = self.pools[name]
            while pool is not None:
                needed |= {source.server for source in (pool.list, pool.split_key) if source is not None}
                pool = self.pools[pool.keys_of] if pool.keys_of is not None else None
        return needed


def load_templates(folder: Path) -> TemplateSet:
    """Every template of `folder` and its sub-folders. Raises UserError with file and line."""
    if not folder.is_dir():
        raise UserError(
            f"there is no template folder {folder}",
            remedy="give one with --templates DIR, or leave the option out",
        )
    paths = sorted(p for p in folder.rglob("*.y*ml") if p.suffix in {".yaml", ".yml"})
    pools_path = folder / POOLS_FILE
    if pools_path not in paths:
        raise UserError(f"{folder} has no {POOLS_FILE}", remedy="it names the entities that slots draw from")
    pools = _load_pools(read_yaml(pools_path))
    templates: dict[str, Template] = {}
    for path in paths:
        if path == pools_path:
            continue
        for template, source, line in _load_file(path):
            where = f"{source.path}:{line}"
            if template.name in templates:
                raise UserError(f"the template name {template.name!r} is used twice", where=where)
            _check_pools(template, pools, source, where)
            templates[template.name] = template
    if not templates:
        raise UserError(f"{folder} holds no templates", remedy=f"add one YAML file next to {POOLS_FILE}")
    digest = sha256()
    for path in paths:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return TemplateSet(templates=tuple(templates.values()), pools=pools, sha256=digest.hexdigest())


def slots_in(value: Any) -> set[str]:
    """Return names of the `{slot}`s in the strings of `value`."""
    if isinstance(value, str):
        return set(_SLOT.findall(value))
    if isinstance(value, Mapping):
        return slots_in(list(value.values()))
    if isinstance(value, Iterable):
        return set().union(*(slots_in(item) for item in value))
    return set()


def fill(value: Any, slots: Mapping[str, Any]) -> Any:
    """`value` with `{slot}`s replaced; a string that is exactly one slot takes the type of its value."""
    if isinstance(value, str):
        whole = _SLOT.fullmatch(value)
        if whole:
            return slots[whole[1]]
        return _SLOT.sub(lambda match: str(slots[match[1]]), value)
    if isinstance(value, Mapping):
        return {fill(key, slots): fill(item, slots) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, slots) for item in value]
    return value


def _load_pools(source: YamlSource) -> dict[str, Pool]:
    if not isinstance(source.data, dict):
        raise UserError("pools are a mapping of names to pools", where=f"{source.path}:1")
    pools = {str(name): validate_yaml(Pool, source, (name,)) for name in source.data}
    for name, pool in pools.items():
        if pool.keys_of is not None and pool.keys_of not in pools:
            raise UserError(
                f"pool {name!r} takes the keys of {pool.keys_of!r}, which is not a pool",
                where=f"{source.path}:{source.line((name, 'keys_of'))}",
                remedy=f"pools are: {', '.join(sorted(pools))}",
            )
    return pools


def _load_file(path: Path) -> list[tuple[Template, YamlSource, int]]:
    source = read_yaml(path)
    places = [(i,) for i in range(len(source.data))] if isinstance(source.data, list) else [()]
    return [(validate_yaml(Template, source, place), source, source.line(place)) for place in places]


def _check_pools(template: Template, pools: Mapping[str, Pool], source: YamlSource, where: str) -> None:
    for slot, pool in template.slots.items():
        if pool not in pools:
            raise UserError(
                f"slot {slot!r} of {template.name!r} draws from {pool!r}, which is not a pool",
                where=where,
                remedy=f"pools of {source.path.parent / POOLS_FILE} are: {', '.join(sorted(pools))}",
            )
