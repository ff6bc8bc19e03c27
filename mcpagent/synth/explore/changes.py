"""What tools add: each is tried in an instance of its own, and read before and after.

The effect becomes the state check of a task (`StateCheck`). Only tools that add something are tried, and only
on servers whose state every session finds as it was at the start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mcpagent.core.matching import others_unchanged, values_equal
from mcpagent.core.placeholders import result_value
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tools import ToolResult, ToolSpec
from mcpagent.synth.explore.answers import one_of
from mcpagent.synth.explore.candidates import Slot, add_own_values, argument_shape, learned_kind, value_form
from mcpagent.synth.explore.graph import Fact, Silence, ToolGraph, given_by, name_words, scalars
from mcpagent.synth.explore.invented import LEAST_KNOWN, invented_like
from mcpagent.synth.explore.naming import frames, human, lexicon, said_value, topic
from mcpagent.synth.explore.wording import Saying, Step, Walk, replaced_in
from mcpagent.synth.tasks.run import CallCache, SynthSession, as_text

_TRIES = 4  # calls of a tool, before it is left alone
_READS = 24  # calls that look for an effect
_OF_A_TOOL = 3  # of them, with arguments that are known
_LIKELY, _POSSIBLE = 2.0, 1.0  # scores: how much the names say that a value is of that kind
_CHECKS = 3  # of one task


@dataclass(frozen=True)
class Read:
    """A call of a tool that only reads, in which what was added shows. Its arguments hold what was added by
    the call that was tried."""

    spec: ToolSpec
    arguments: JsonObject


@dataclass(frozen=True)
class Addition:
    """A tool that adds something, the values that it was tried with, and the reads that showed them. The
    slots in `existing` name what is there already."""

    spec: ToolSpec
    values: tuple[Any, ...]
    existing: frozenset[int]
    reads: tuple[Read, ...]


def adds(spec: ToolSpec) -> bool:
    """Whether a tool adds something, by what it says of itself and by its name: nothing is lost, and nobody
    outside hears of it."""
    words = set(name_words(spec.name))
    if spec.annotations.read_only or words & lexicon("takes_away"):
        return False
    if not spec.annotations.destructive and not spec.annotations.open_world:
        return True
    return bool(words & lexicon("adds")) and not words & lexicon("reaches_out")


@dataclass
class _Slots:
    """The arguments of a tool that adds, and values for them: of a kind that is known, or new."""

    spec: ToolSpec
    facts: Sequence[Fact]
    taken: set[str]
    seed: int
    values_of: dict[int, list[Any]] = field(default_factory=dict)
    like: dict[int, list[Any]] = field(default_factory=dict)  # of which the names say less

    def __post_init__(self) -> None:
        self.shape = argument_shape(self.spec)
        self.slots = self.shape.required
        for slot in self.slots:
            add_own_values(slot, self.spec, seed=self.seed)
        for fact in self.facts:
            if fact.spec.server != self.spec.server:
                continue
            for value, leaf, prefix in given_by(fact):
                for number, slot in enumerate(self.slots):
                    kind = learned_kind(slot, self.spec, fact.spec, value, leaf, prefix)
                    if kind is not None and kind[1] >= _POSSIBLE:
                        self.like.setdefault(number, []).append(value)
                    if kind is not None and kind[1] >= _LIKELY:
                        self.values_of.setdefault(number, []).append(value)

    def names_existing(self, number: int) -> bool:
        """Whether a slot names what is there already: the entity of an observation, an end of a relation."""
        words = set(name_words(self.slots[number].name))
        if self.slots[number].form == "path" and words & {"path", "file", "filename"}:
            return False
        if words & (lexicon("from") | lexicon("to") | lexicon("inside")):
            return True
        nouns = words - lexicon("naming") - lexicon("identifiers")
        return bool(words & lexicon("naming") and nouns and not nouns & set(name_words(topic(self.spec))))

    def is_new(self, number: int) -> bool:
        """Whether a slot takes the name of what is added."""
        slot = self.slots[number]
        is_name = bool(set(name_words(slot.name)) & lexicon("naming")) or slot.form == "path"
        return slot.type == "string" and is_name and not self.names_existing(number)

    def drawn(self, rng: Random, *, existing: Collection[int]) -> tuple[Any, ...] | None:
        """A value for each slot, those of `existing` of what there is; None where there is none for one."""
        values: list[Any] = []
        for number, slot in enumerate(self.slots):
            value = self._value(number, slot, rng, is_existing=number in existing)
            if value is None or any(value == other for other in values if isinstance(value, str)):
                return None
            values.append(value)
        return tuple(values)

    def _value(self, number: int, slot: Slot, rng: Random, *, is_existing: bool) -> Any:
        told = list(dict.fromkeys(self.values_of.get(number, ())))
        if is_existing:
            return rng.choice(told) if told else None
        if slot.schema.get("enum") or slot.type == "boolean":
            return rng.choice(slot.kinds["enum"].candidates).value
        if slot.form == "path":
            return self._path(rng)
        if self.is_new(number):
            texts = list(dict.fromkeys(v for v in self.like.get(number, ()) if isinstance(v, str)))
            made = invented_like(texts, self.taken, rng) if len(texts) >= LEAST_KNOWN else None
            return made or rng.choice(frames()["things"])
        if slot.type == "string" and not set(name_words(slot.name)) & lexicon("prose") and told:
            return rng.choice(told)  # the type of an entity, a category
        options = [c.value for kind in slot.kinds.values() for c in kind.candidates]
        if slot.type == "string" and slot.form in ("", "text"):
            options = [value for value in options if len(str(value).split()) > 2] or options
        return rng.choice(options) if options else None

    def _path(self, rng: Random) -> str | None:
        """A file, or a folder, beside those that are known."""
        paths = [
            text
            for fact in self.facts
            for _, text in fact.texts
            if "/" in text and value_form(text) == "path"
        ]
        files = list(dict.fromkeys(path for path in paths if "." in path.rpartition("/")[2]))
        made = invented_like(files, self.taken, rng)
        is_folder = bool({"directory", "folder", "dir"} & set(name_words(self.spec.name)))
        if not isinstance(made, str):
            return None
        return made.rpartition(".")[0] if is_folder else made


class Effects:
    """Tries what adds something. `servers` are those whose state comes back; `silences` says of the tools
    that were tried without success why, `kept` which servers kept what was added for the next session."""

    def __init__(self, cache: CallCache, graph: ToolGraph, servers: Collection[str], *, seed: int) -> None:
        self._cache, self._graph, self._seed = cache, graph, seed
        self._specs = [spec for spec in cache.specs if spec.server in servers and adds(spec)]
        self._readers = [
            spec for spec in cache.specs if spec.server in servers and spec.annotations.read_only
        ]
        self.additions: list[Addition] = []
        self.silences: list[Silence] = []
        self.kept: set[str] = set()
        self.tried = [spec.dotted for spec in self._specs]

    async def run(self, on_call: Callable[[str], None] = lambda _: None) -> None:
        """Try each tool."""
        taken = known_values(self._graph.facts)
        for spec in self._specs:
            on_call(spec.dotted)
            if spec.server in self.kept:
                continue
            slots = _Slots(spec, self._graph.facts, taken, self._seed)
            outcome = await self._tried(slots)
            if isinstance(outcome, Addition):
                self.additions.append(outcome)
            else:
                self.silences.append(outcome)

    async def _tried(self, slots: _Slots) -> Addition | Silence:
        rng = Random(derive_seed(self._seed, "adds", slots.spec.dotted))
        must = {number for number in range(len(slots.slots)) if slots.names_existing(number)}
        every = {number for number in range(len(slots.slots)) if slots.values_of.get(number)}
        why = "nothing gave arguments for it"
        for attempt in range(_TRIES):
            existing = frozenset(must if attempt < _TRIES - 1 else must | every)
            values = slots.drawn(rng, existing=existing)
            if values is None:
                continue
            outcome = await self._try(slots, values, existing)
            if isinstance(outcome, Addition):
                return outcome
            why = outcome
            if slots.spec.server in self.kept:
                break
        text = "adds something by its name or annotations, and was tried in an instance of its own: "
        return Silence("no_effect", text + why, (slots.spec.dotted,))

    async def _try(self, slots: _Slots, values: tuple[Any, ...], existing: frozenset[int]) -> Addition | str:
        """The addition, or why it is none."""
        spec, arguments = slots.spec, slots.shape.filled(slots.slots, values)
        if fault := self._cache.argument_fault(spec.server, spec.name, arguments):
            return f"no arguments fit its schema ({fault})"
        reads = list(self._reads(spec, values))
        async with self._cache.session() as session:
            before = [await _ask(session, read) for read in reads]
            done = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
            if done.is_error or done.failure is not None:
                return f"it refused ({' '.join(done.content.split())[:120]})"
            after = [await _ask(session, read) for read in reads]
        changed = [
            (read, was, now)
            for read, was, now in zip(reads, before, after, strict=True)
            if as_text(was) != as_text(now)
        ]
        if changed and not await self._starts_over(changed[0]):
            self.kept.add(spec.server)
            return "the next session found what was added, so the server needs a workspace or a reset"
        seen = [(read, check) for read, was, now in changed if (check := _check_of(read, was, now, values))]
        # Without a check of each value a wrong one would pass.
        picked = _covering(seen, [value for value in values if not isinstance(value, bool)])
        if picked is None:
            return "no tool that only reads tells all of what was added"
        return Addition(spec, values, existing, tuple(picked))

    async def _starts_over(self, changed: tuple[Read, ToolResult, ToolResult]) -> bool:
        """Whether the next session finds the state as this one did."""
        read, was, _ = changed
        async with self._cache.session(generation=4) as session:
            return as_text(await _ask(session, read)) == as_text(was)

    def _reads(self, spec: ToolSpec, values: Sequence[Any]) -> Iterator[Read]:
        """Calls that may tell of what is added: those that are known, and those about its values."""
        made: dict[str, Read] = {}
        texts = [value for value in values if isinstance(value, str)]
        texts += [text.rpartition("/")[0] for text in texts if text.rfind("/") > 0]
        for reader in self._readers:
            if reader.server != spec.server:
                continue
            facts = [fact for fact in self._graph.facts if fact.spec is reader and fact.page == 1]
            facts.sort(key=lambda fact: set(map(str, scalars(fact.arguments))).isdisjoint(texts))
            options = [fact.arguments for fact in facts[:_OF_A_TOOL]]
            shape = argument_shape(reader)
            if not shape.required:
                options.insert(0, shape.template)
            elif len(shape.required) == 1 and shape.required[0].is_free:
                options += [shape.filled(shape.required, [text]) for text in texts if len(text) <= 200]
            for arguments in options:
                made.setdefault(json.dumps([reader.name, arguments], sort_keys=True), Read(reader, arguments))
        yield from list(made.values())[:_READS]


def known_values(facts: Sequence[Fact]) -> set[str]:
    """Every value that is known, in small letters."""
    values = (v for fact in facts for v in (*scalars(fact.arguments), *(leaf.value for leaf in fact.leaves)))
    return {str(value).casefold() for value in values}


async def _ask(session: SynthSession, read: Read) -> ToolResult:
    return await session.call(server=read.spec.server, tool=read.spec.name, arguments=read.arguments)


@dataclass(frozen=True)
class _Check:
    """What a read has to give after the change. `covers` are the values that it tells, as texts."""

    expect: JsonObject
    covers: frozenset[str]
    nothing_else: bool


def _check_of(read: Read, was: ToolResult, now: ToolResult, values: Sequence[Any]) -> _Check | None:
    """What tells the change; None where nothing does, or something is gone."""
    if now.is_error or now.failure is not None:
        return None
    after = result_value(now)
    before = None if was.is_error or was.failure is not None else result_value(was)
    asked = set(map(str, scalars(read.arguments)))
    # In the listing of its folder a file goes by its name alone.
    shown = {value: str(value) for value in values}
    shown |= {str(v).rpartition("/")[2]: str(v) for v in values if _folder(str(v)) in asked - {""}}
    expect: JsonObject = {}
    if not _compare(before, after, "", list(shown), expect) or not expect:
        return None
    texts, patterns = json.dumps(expect, ensure_ascii=False), _patterns(expect)
    covers = {
        whole
        for value, whole in shown.items()
        if json.dumps(value, ensure_ascii=False).strip('"') in texts or re.escape(str(value)) in patterns
    }
    if before is None:  # nobody could ask for it before
        covers |= asked & set(shown.values())
    is_alone = before is not None and others_unchanged(expect, after, before)
    return _Check(expect, frozenset(covers), is_alone) if covers else None


def _patterns(expect: JsonObject) -> str:
    return "\n".join(rule["regex"] for rule in expect.values() if isinstance(rule, dict) and "regex" in rule)


def _compare(before: Any, after: Any, path: str, values: Sequence[Any], expect: JsonObject) -> bool:
    """Put into `expect` what `after` has more. False where something of `before` is gone or changed."""
    if before is not None and type(before) is type(after) and values_equal(before, after):
        return True
    if isinstance(after, dict) and isinstance(before, dict | None):
        old = before or {}
        if old.keys() - after.keys():
            return False
        return all(
            _compare(old.get(key), after[key], f"{path}.{key}" if path else key, values, expect)
            for key in after
            if not re.search(r"[.\[\]]", key)
        )
    if isinstance(after, list) and isinstance(before, list | None):
        return _compare_lists(before or [], after, path, values, expect, is_new=before is None)
    if isinstance(after, str) and isinstance(before, str | None):
        return _compare_texts(before, after, path, values, expect)
    if before is None:
        if any(values_equal(value, after) and type(value) is type(after) for value in values):
            expect[path] = after
        return True
    if isinstance(after, int | float) and isinstance(before, int | float) and after > before:
        expect[path] = {"increased_by": after - before}  # how many there are
        return True
    return False


def _compare_lists(
    before: list[Any], after: list[Any], path: str, values: Sequence[Any], expect: JsonObject, *, is_new: bool
) -> bool:
    if len(before) == len(after):
        return all(
            _compare(old, new, f"{path}[{place}]", values, expect)
            for place, (old, new) in enumerate(zip(before, after, strict=True))
        )
    left = list(after)
    for item in before:
        place = next((n for n, other in enumerate(left) if values_equal(item, other)), None)
        if place is None:
            return False
        left.pop(place)
    if len(left) != 1:
        return is_new
    item = left[0]
    pattern = _pattern(item, values) if isinstance(item, dict) else item if _holds(item, values) else None
    if pattern in (None, {}):
        return True
    expect[path] = {"contains": pattern} if is_new else {"contains": pattern, "increased_by": 1}
    return True


def _pattern(item: JsonObject, values: Sequence[Any]) -> JsonObject:
    """The fields of an item that hold what was added, and nothing else."""
    return {name: value for name, value in item.items() if _holds(value, values)}


def _holds(value: Any, values: Sequence[Any]) -> bool:
    parts = list(scalars(value))
    return bool(parts) and all(
        any(type(part) is type(each) and values_equal(each, part) for each in values) for part in parts
    )


def _compare_texts(
    before: str | None, after: str, path: str, values: Sequence[Any], expect: JsonObject
) -> bool:
    """Lines that were not there, with something that was added."""
    old = (before or "").splitlines()
    lines = after.splitlines()
    for line in old:
        if line not in lines:
            return False
        lines.remove(line)
    if before is None and any(value == after for value in values):
        expect[path] = after
        return True
    telling = [line for line in lines if any(str(value) in line for value in values if str(value).strip())]
    if telling:
        expect[path] = {
            "regex": "".join(rf"(?=[\s\S]*^[ \t]*{re.escape(t.strip())}[ \t]*$)" for t in telling)
        }
        expect[path]["regex"] = "(?m)" + expect[path]["regex"]
    return True


def _covering(seen: Sequence[tuple[Read, _Check]], values: Sequence[Any]) -> list[Read] | None:
    """As few reads as tell all the values between them; None where they do not. One that shows that nothing
    else was changed comes first, where there is one."""
    missing = {str(value) for value in values}
    left, picked = list(seen), list[Read]()
    while missing or not picked:
        if not left or len(picked) == _CHECKS:
            return None
        is_first = not picked
        read, check = max(
            left, key=lambda pair: (is_first and pair[1].nothing_else, len(pair[1].covers & missing))
        )
        left = [pair for pair in left if pair[0] is not read]
        if check.covers & missing:
            picked.append(read)
            missing -= check.covers
    return picked


def draw_addition(
    additions: Sequence[Addition], facts: Sequence[Fact], taken: set[str], rng: Random
) -> Walk | None:
    """A wish that something be added, in which only things of `facts` are named."""
    if not additions:
        return None
    addition = rng.choice(additions)
    slots = _Slots(addition.spec, facts, taken, rng.randrange(2**31))
    values = slots.drawn(rng, existing=addition.existing)
    if values is None:
        return None
    fact = Fact(addition.spec, slots.shape.filled(slots.slots, values), ())
    changed = [
        (one, other) for one, other in zip(addition.values, values, strict=True) if isinstance(one, str)
    ]
    changed += [(_folder(one), _folder(other)) for one, other in changed if _folder(one)]
    reads = []
    for read in addition.reads:
        arguments: Any = read.arguments
        for number, (one, _) in enumerate(changed):
            arguments = replaced_in(arguments, one, f"\0{number}")
        for number, (_, other) in enumerate(changed):
            arguments = replaced_in(arguments, f"\0{number}", other)
        reads.append(Fact(read.spec, arguments, ()))
    new = next((str(v) for n, v in enumerate(values) if slots.is_new(n)), str(values[0]) if values else "")
    return Walk(
        "state_change", "added", (Step(fact),), (), _saying(slots, values, addition.existing),
        reads=tuple(reads), invented=new,
    )  # fmt: skip


def _folder(text: str) -> str:
    return text.rpartition("/")[0]


def _saying(slots: _Slots, values: Sequence[Any], existing: Collection[int]) -> Saying:
    """What is to be added: `add a note called Copper Kettle with the text "..." to Aurora`."""
    spec = slots.spec
    verbs = lexicon("adds") | lexicon("reaches_out")
    said_of_tool = [word for word in topic(spec).split() if word not in verbs]
    thing = one_of(" ".join(said_of_tool) or "entry")
    verb = next((word for word in name_words(spec.name) if word in verbs), "add")
    verb = verb if verb in ("create", "write", "save", "record", "register", "send", "post") else "add"
    named, about, told = "", "", list[str]()
    for number, (slot, value) in enumerate(zip(slots.slots, values, strict=True)):
        words, said = set(name_words(slot.name)), said_value(value)
        if slots.is_new(number) and not named:
            named = f" {said}" if slot.form == "path" else f" called {said}"
        elif words & lexicon("from"):
            about += f" from {said}"
        elif words & lexicon("to"):
            about += f" to {said}"
        elif words & lexicon("inside"):
            about += f" in {said}"
        elif number in existing:
            about += f" for {said}"
        else:
            name = human(slot.name)
            name = "text" if name == thing else name
            is_count = slot.type in ("integer", "number") and name.endswith("s")
            told.append(f"{said} {name}" if is_count else f"the {one_of(name)} {said}")
    article = "an" if thing[:1] in "aeiou" else "a"
    details = f" with {' and '.join(told)}" if told else ""
    text = f"{verb} {article} {thing}{named}{about}{details}"
    return Saying(text, text, text, text)


async def state_of(walk: Walk, cache: CallCache) -> Mapping[str, list[JsonObject]] | str:
    """The state checks that tell what the walk adds, found by making its call between two readings; or why
    there are none."""
    spec, arguments = walk.steps[-1].fact.spec, walk.steps[-1].fact.arguments
    values = [value for value in scalars(arguments) if not isinstance(value, bool)]
    reads = [Read(fact.spec, fact.arguments) for fact in walk.reads]
    async with cache.session() as session:
        before = [await _ask(session, read) for read in reads]
        done = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
        if done.is_error or done.failure is not None:
            return f"{spec.dotted}({arguments}): {done.content[:200]}"
        after = [await _ask(session, read) for read in reads]
    checks: list[JsonObject] = []
    missing = {str(value) for value in values}
    for read, was, now in zip(reads, before, after, strict=True):
        check = _check_of(read, was, now, values)
        if check is None:
            return f"{read.spec.dotted}({read.arguments}) does not tell what was added"
        missing -= check.covers
        call = {"tool": read.spec.name, "arguments": read.arguments}
        made: JsonObject = {"call": call, "expect": check.expect}
        checks.append({**made, "nothing_else_changed": True} if check.nothing_else else made)
    return f"no reading tells {sorted(missing)}" if missing else {spec.server: checks}
