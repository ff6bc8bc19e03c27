"""What a question is: the calls that answer it, what they are about, and what a right answer says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from mcpagent.core.records import JsonObject
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.questions import FRAMES, NAMED, WISHES, framed
from mcpagent.synth.tasks.run import replaced_in

_PLACES = re.compile(r"\[\d+\]|step\d+")
Lack = Literal["", "existence", "function", "right"]
AnswerType = Literal["number", "date", "name", "pairs"]


@dataclass(frozen=True)
class Step:
    """A call of a walk. `links` are the arguments that come out of earlier results: (value, reference)."""

    fact: Fact
    links: tuple[tuple[str, str], ...] = ()

    @property
    def params(self) -> JsonObject:
        """The arguments, with references for what earlier results give."""
        replaced: Any = self.fact.arguments
        for text, reference in self.links:
            replaced = replaced_in(replaced, text, reference)
        return replaced


@dataclass(frozen=True)
class Walk:
    """A question. `kind` is the class of its task and `shape` what is asked in it, `goal` what is asked for:
    a noun, or a wish. `seen` is the evidence (`EvidenceFact`) that a right episode has, whose values are the
    `answer`; of pairs, `things` says which thing each is of. `lack` says what a question has too little of:
    the existence of the thing that it names (`invented`), a function that is withheld, the right to change.
    `reads` are calls whose answers tell what a walk changed, which is what it is for if there are some."""

    kind: str
    shape: str
    steps: tuple[Step, ...]
    goal: str
    answer: AnswerType | None = None
    seen: tuple[JsonObject, ...] = ()
    things: tuple[str, ...] = ()
    lack: Lack = ""
    invented: str = ""
    reads: tuple[Fact, ...] = ()
    names: str = ""  # what the user says when asked which one is meant

    @property
    def key(self) -> str:
        """A text that is equal for walks that ask the same, whichever tools answer it, or none."""
        return json.dumps([self.goal.casefold(), self.names])

    @property
    def form(self) -> str:
        """A text that is equal for walks that ask for the same field of what one tool tells."""
        asked = [_PLACES.sub("", seen["value"]) for seen in self.seen[:1]]
        return json.dumps([self.steps[-1].fact.spec.dotted, *asked])

    def said(self, rng: Random) -> tuple[str, ...]:
        """Return the messages of the user; the same for the same state of `rng`."""
        is_wish = self.reads or self.lack == "right"
        first = framed(WISHES if is_wish else FRAMES, rng, self.goal)
        return (first, framed(NAMED, rng, self.names)) if self.names else (first,)


def about(fact: Fact) -> str:
    """Return what a call is, as a text that is equal for equal calls."""
    return json.dumps([fact.spec.dotted, fact.arguments], sort_keys=True)
