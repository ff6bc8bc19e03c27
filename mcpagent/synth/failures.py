"""New tasks from those that a policy failed: the same calls about other things, one call less, one more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.datasets import find_dataset, read_tasks
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, read_trajectories
from mcpagent.synth.templates.pools import SPLITS
from mcpagent.synth.templates.template import Template, TemplateSet

Relation = Literal["same", "less", "more"]
# What a task of each relation weighs: the skill itself as much as both ways to it and beyond it.
_WEIGHTS: Mapping[Relation, float] = {"same": 1.0, "less": 0.5, "more": 0.5}
# Names of classes in which calls follow each other, by templates, exploring and a reader of records.
_ACTING = ("single", "sequential", "single_call", "multi_step", "error_recovery")
_NO_TEMPLATE = ""


@dataclass(frozen=True)
class Skill:
    """What a task takes: its class (those in which calls follow each other are one) and the tools of its
    plan in order. `template` is empty if it has none."""

    kind: str
    tools: tuple[str, ...]
    template: str = _NO_TEMPLATE

    @classmethod
    def of(cls, kind: str | None, tools: Sequence[str], *, template: str = _NO_TEMPLATE) -> Skill:
        """Return the skill of a class and its calls, whichever of the class's names is used."""
        is_acting = kind in _ACTING or (kind is None and bool(tools))
        return cls("acting" if is_acting else kind or "abstain", tuple(tools), template)

    @classmethod
    def of_task(cls, task: Task) -> Skill:
        """Return the skill of a record, also of one in which the right thing is not to call."""
        info, truth = task.extra_info, task.truth
        steps: Sequence[Mapping[str, Any]] = info.get("would_call") or [
            {"server": step.server, "tool": step.tool} for step in truth.tool_sequence
        ]
        kind = info.get("class")
        if kind is None and truth.user_turns:
            kind = "multi_turn"
        if kind is None and any(step.parallel_group is not None for step in truth.tool_sequence):
            kind = "parallel"
        return cls.of(
            kind,
            [f"{step['server']}.{step['tool']}" for step in steps],
            template=str(info.get("template", _NO_TEMPLATE)),
        )

    @classmethod
    def of_template(cls, template: Template) -> Skill:
        """Return the skill of the tasks that a template makes."""
        kind = None if template.kind is None else str(template.kind)
        if kind is None and template.user_turns:
            kind = "multi_turn"
        return cls.of(kind, [f"{s.server}.{s.tool}" for s in template.plan], template=template.name)

    def relation_to(self, failed: Skill) -> Relation | None:
        """Return what a task of this skill is to one that was failed; None: another matter."""
        if self.template and failed.template:
            if self.template == failed.template:
                return "same"
        elif (self.kind, self.tools) == (failed.kind, failed.tools):
            return "same"
        if self.kind != "acting" or failed.kind not in ("acting", "parallel") or not self.tools:
            return None
        if _is_one_less(self.tools, failed.tools):
            return "less"
        return "more" if _is_one_less(failed.tools, self.tools) else None


def _is_one_less(shorter: Sequence[str], longer: Sequence[str]) -> bool:
    """Whether `shorter` is `longer` without one of its calls."""
    return len(shorter) + 1 == len(longer) and any(
        [*longer[:i], *longer[i + 1 :]] == list(shorter) for i in range(len(longer))
    )


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Which tasks are made in place of any: those near a failed skill, by how much it was failed. Tasks that
    the dataset has are not made again, nor any about what its other splits hold."""

    failed: Mapping[Skill, float]  # by skill: failed tasks, each counted as its share of failed attempts
    task_ids: Collection[str]  # of the dataset
    held_out: Collection[str] = ()  # what tasks of other splits alone are about
    splits: tuple[str, ...] = SPLITS  # of the dataset: its entities are divided among these
    dataset_seed: int = 0
    draw_seed: int = 0
    _relations: dict[Skill, dict[Relation, float]] = field(default_factory=dict, compare=False)

    def weight(self, skill: Skill) -> float:
        """Return how often tasks of a skill are to be made, relative to others; 0: never."""
        return sum(_WEIGHTS[relation] * count for relation, count in self._of(skill).items())

    def share(self, skill: Skill) -> float:
        """Return the weight in 0..1, where 1 is that of the skill failed most."""
        return min(1.0, self.weight(skill) / max(self.failed.values()))

    def templates(self, templates: Sequence[Template]) -> list[Template]:
        """Return those near a failed skill, weighted anew."""
        weights = [self.weight(Skill.of_template(template)) for template in templates]
        return [
            template.model_copy(update={"weight": weight})
            for template, weight in zip(templates, weights, strict=True)
            if weight > 0
        ]

    def admits(self, task: Task) -> bool:
        """Return whether the task is new, and about nothing that is held out."""
        return task.id not in self.task_ids and not (subjects_of(task) & set(self.held_out))

    def described(self, task: Task) -> Task:
        """Return the task with what it is to the failed ones."""
        relations = self._of(Skill.of_task(task))
        relation = max(relations, key=lambda name: relations[name], default=None)
        info = {**task.extra_info, "from_failures": {"relation": relation}}
        return task.model_copy(update={"extra_info": info})

    def _of(self, skill: Skill) -> dict[Relation, float]:
        if skill not in self._relations:
            relations: defaultdict[Relation, float] = defaultdict(float)
            for failed, count in self.failed.items():
                relation = skill.relation_to(failed)
                if relation is not None:
                    relations[relation] += count
            self._relations[skill] = dict(relations)
        return self._relations[skill]


def subjects_of(task: Task) -> set[str]:
    """Return what a generated task is about: the entities in its slots, or the call that explored it."""
    slots = task.extra_info.get("slots", {})
    subjects = {str(value) for value in slots.values() if isinstance(value, str)}
    return subjects | ({str(task.extra_info["about"])} if "about" in task.extra_info else set())


@dataclass(frozen=True, kw_only=True)
class FailedTasks:
    """What a run's policy failed. `template_names` are those of its failed tasks, `n_tasks` how many were
    failed of those that were played."""

    config: TrainConfig
    variation: Variation
    template_names: frozenset[str]
    n_tasks: int
    n_played: int
    answer_line: bool  # whether the failed tasks ask for it

    def templates_among(self, sets: Iterable[TemplateSet]) -> TemplateSet | None:
        """Return the first set that made some of the failed tasks; None if exploring did, or what cannot make
        more of them."""
        mine = (s for s in sets if self.template_names & {template.name for template in s.templates})
        return next(mine, None)

    def as_json(self) -> JsonObject:
        """Return what the document of `gen-data --json` says of them."""
        return {
            "played": self.n_played,
            "failed": self.n_tasks,
            "skills": [
                {"class": skill.kind, "tools": list(skill.tools), "template": skill.template or None, "n": n}
                for skill, n in sorted(self.variation.failed.items(), key=lambda item: -item[1])
            ],
        }


def read_failures(run: Path, *, seed: int) -> FailedTasks:
    """Return the tasks that the policy of a run failed when it last met them, by at least half of its
    attempts.

    Only the training episodes count: those of evaluations would teach what is held out. Raises UserError
    if there is none.
    """
    folder = RunFolder.open(run)
    config = load_train_config(inherited=folder.config_path, for_training=False).config
    path = find_dataset(config.data.train, split="train")
    shares = _failed_shares(folder)
    failed = {task_id: share for task_id, share in shares.items() if share >= 0.5}
    if not failed:
        played = "solved each task that it met" if shares else "has no scored training episode yet"
        raise UserError(
            f"the policy {played}, so there is nothing to make tasks from",
            where=str(run),
            remedy="name a run whose training has failed some: mcpagent runs",
        )
    skills: defaultdict[Skill, float] = defaultdict(float)
    has_line = False
    seeds: Counter[int] = Counter()
    ids, ours, theirs, splits = set[str](), set[str](), set[str](), ["train"]
    for task in read_tasks(path):
        ids.add(task.id)
        ours |= subjects_of(task)
        if task.id in failed:
            skills[Skill.of_task(task)] += failed[task.id]
            has_line = has_line or task.truth.answer_line
            seeds[int(task.extra_info.get("seed", 0))] += 1
    for split in ("validation", "heldout"):
        for sibling in _sibling(path, split):
            splits.append(split)
            for task in read_tasks(sibling):
                ids.add(task.id)
                theirs |= subjects_of(task)
    if not skills:
        raise UserError(
            f"none of the {len(failed)} failed tasks is in {path}, which the run was trained on",
            where=str(run),
            remedy="put the dataset back that its config.yaml names",
        )
    variation = Variation(
        failed=dict(skills),
        task_ids=frozenset(ids),
        held_out=frozenset(theirs - ours),
        splits=tuple(split for split in SPLITS if split in splits),
        dataset_seed=seeds.most_common(1)[0][0],
        draw_seed=seed,
    )
    names = frozenset(skill.template for skill in skills if skill.template)
    return FailedTasks(
        config=config,
        variation=variation,
        template_names=names,
        n_tasks=seeds.total(),
        n_played=len(shares),
        answer_line=has_line,
    )


def _sibling(path: Path, split: str) -> Iterator[Path]:
    yield from sorted(path.parent.glob(f"{split}.json*"))[:1]


def _failed_shares(folder: RunFolder) -> dict[str, float]:
    """By task, the share of failed attempts among the scored ones of the last step that played it."""
    shares: dict[str, float] = {}
    records = [p for p in folder.trajectories.glob("step-*") if p.name.endswith(RECORDS_SUFFIXES)]
    for path in sorted(records):
        outcomes: dict[str, list[bool]] = {}
        for trajectory in read_trajectories(path, with_tokens=False):
            if trajectory.is_success is not None:
                outcomes.setdefault(trajectory.task_id, []).append(trajectory.is_success)
        shares |= {task_id: done.count(False) / len(done) for task_id, done in outcomes.items()}
    return shares
