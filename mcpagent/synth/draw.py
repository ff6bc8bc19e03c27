"""Which task is tried next: a template, entities of one split, a wording. Pure and seeded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.synth.templates import Template, fill


@dataclass(frozen=True)
class Candidate:
    """A task that is not yet executed. `variant` indexes the template's prompts."""

    template: Template
    slots: Mapping[str, Any]
    variant: int

    @cached_property
    def key(self) -> str:
        """Equal for tasks that ask for the same calls; the wording does not make a task distinct. That a
        template states a class does: the same calls after a failure, or withheld, are another task."""
        calls = fill(self.template.plan_json, self.slots)
        subject: JsonObject = (
            {"calls": calls} if calls else {"template": self.template.name, "slots": self.slots}
        )
        if self.template.kind in ("missing_function", "error_recovery"):
            subject["class"] = self.template.kind
        return json.dumps(subject, sort_keys=True, ensure_ascii=False, default=str)


class Draw:
    """Candidates of one split: `draw(index)` depends on the seed, the split and the index alone. `templates`
    are those that the entities of the split are enough for; without one there is nothing to draw."""

    def __init__(
        self, templates: Sequence[Template], entities: Mapping[str, Sequence[Any]], *, split: str, seed: int
    ) -> None:
        fitting = [
            template
            for template in templates
            if all(len(entities[pool]) >= needed for pool, needed in template.needed.items())
        ]
        # Those in which nothing is to be called go with the others: alone they ask nothing.
        asks_nothing = any(t.plan for t in templates) and not any(t.plan for t in fitting)
        self.templates = [] if asks_nothing else fitting
        self._weights = [t.weight for t in self.templates]
        self._entities = entities
        self._split = split
        self._seed = seed

    def __call__(self, index: int) -> Candidate:
        rng = Random(derive_seed(self._seed, self._split, index))
        template = rng.choices(self.templates, weights=self._weights)[0]
        slots: dict[str, Any] = {}
        for pool in sorted(set(template.slots.values())):
            names = [slot for slot, source in template.slots.items() if source == pool]
            # Two slots of one pool never get the same entity: a channel is not posted to itself.
            slots.update(zip(names, rng.sample(self._entities[pool], len(names)), strict=True))
        ordered = {slot: slots[slot] for slot in template.slots}
        ordered |= {name: rule.value(str(slots[rule.of])) for name, rule in template.derived.items()}
        return Candidate(template, ordered, rng.randrange(len(template.prompts)))
