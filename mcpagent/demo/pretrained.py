"""The quickstart with a pretrained model: its recipe, and how much of it fits into the time that there is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.console import duration

SPLITS = {"train": 480, "validation": 48, "heldout": 160}
LEAST = {"train": 40, "heldout": 20}  # tasks; below these there is nothing to learn, or nothing to see
DEFAULT_MINUTES = 60

# What a pretrained model starts from is its own: the demonstrations show what a call looks like here, and
# that an answer follows a result. All of them are right.
_RECIPE = ["training.eval_samples=0", "training.eval_every=0"]
_WARM_START = [
    "algorithm=sft",
    "optimization.learning_rate=2e-4",
    "training.batch_size=8",
    "training.max_steps=8",
    "training.warmup_steps=0",
    "training.save_frequency=4",
]
_GRPO = [
    # Neither the length of an attempt nor how alike the rewards of its group are makes it count for more
    # (Liu et al. 2025, arXiv 2503.20783): batches are small, and most failures differ by a shaping term.
    "grpo.loss=dr_grpo",
    "training.save_frequency=5",
    "training.warmup_steps=2",  # Adam's first steps are as long as the rate, whatever the gradient
]
_EVAL_EVERY = 6  # about so many steps of GRPO between evaluations, of which it gives the best checkpoint
# Prompts of a step and attempts at each, the largest first. After a warm start most groups succeed or fail as
# one: prompts of all kinds in a step matter more than attempts at each.
SHAPES = ((16, 8), (8, 8), (8, 4), (4, 4))
# Of GRPO, for 16 episodes a step; by the square root of their number (Malladi et al. 2022, arXiv 2205.10287).
# With 5e-5 the policy swung between one call too few and one too many (docs/results.md).
_LEARNING_RATE = 1.4e-5
_ENOUGH_STEPS = 40  # of GRPO: a batch of more episodes than are modest waits until there is time for so many
_FEW_STEPS = 10  # of it rather than more of smaller ones
_LEAST_STEPS = 8
# Supervised. GRPO has the minutes that are left: where both were measured (docs/results.md), demonstrations
# taught more in the same time.
_WARM_STEPS = 8, 48
_EVALUATION_SHARE = 0.15  # of the minutes, for the warm start and the trained model
_UNTRAINED_SHARE = 0.1  # and for the model as it is, without and with shots, whose episodes are long
_LEAST_UNTRAINED = 10  # tasks
_LEAST_NEW_TOKENS = 128  # of a turn; twice the longest that few demonstrations show, if that is more
_MOST_OVER = 1.3  # times the minutes, after which GRPO ends with a checkpoint


@dataclass(frozen=True)
class Width:
    """The number of episodes that a device plays at once, the episodes of a step that cost little more than
    half of them, and the samples of the pass that is timed with their last `tokens`."""

    at_once: int
    modest: int
    samples: int
    tokens: int


# A GPU takes about as long for many rows as for few; where their cache has no room, fewer are played.
_CPU, _ACCELERATOR = Width(32, 32, 1, 384), Width(256, 128, 16, 1 << 20)

ABOUT = (
    "A pretrained model learns to use MCP servers. It is measured as it is, without and with two shots, "
    "imitates demonstrations that were played on the real servers, and is then trained by GRPO on real "
    "episodes, with rewards computed from what the servers answered."
)


def width_of(config: TrainConfig) -> Width:
    """Return that of the device that the configuration names. Raises UserError if it is not there."""
    from mcpagent.models.load import resolve_device  # and with it torch

    return _CPU if resolve_device(config.device).type == "cpu" else _ACCELERATOR


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The model that is named, the minutes that the whole may take, and settings of the user's own."""

    model: str
    minutes: float = DEFAULT_MINUTES
    settings: Sequence[str] = ()

    def configs(
        self, shared: Sequence[str], fitted: Mapping[str, Sequence[str]]
    ) -> tuple[TrainConfig, TrainConfig]:
        """Return the settings of the warm start and of GRPO; `fitted` are those of each that follow from the
        pace of this machine. What the user set stands. Raises UserError."""
        name = f"model.name={json.dumps(self.model)}"
        warm, grpo = (
            load_train_config([], [*shared, name, *_RECIPE, *recipe, *self.settings]).config
            for recipe in ([*_WARM_START, *fitted.get("warm_start", ())], [*_GRPO, *fitted.get("grpo", ())])
        )
        if warm.sft.max_tasks is None:  # no more are demonstrated than are trained on
            few = warm.training.batch_size * (warm.training.max_steps or 1)
            warm = warm.with_settings(sft={"max_tasks": few})
        if not self.has_set("rollout.num_envs"):
            grpo = grpo.with_settings(rollout={"num_envs": width_of(grpo).at_once})
        return warm, grpo

    def has_set(self, key: str) -> bool:
        """Return whether the user set this."""
        return any(text.partition("=")[0].strip() == key for text in self.settings)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of one step on this machine: supervised, and of GRPO for each shape that it may have, prompts
    by attempts, with episodes of as many turns and tokens as the demonstrations have; `load_s` is what it
    takes to begin. `eval_s` is one such episode of an evaluation, where no two share a task. An episode of
    the untrained model, which often repeats a call until its turns are spent, takes `untrained_ratio` as
    long. `longest_turn` is the tokens of the longest turn that was seen in demonstrations. A step has
    `modest` episodes unless there is much time."""

    supervised_s: float
    steps_s: Sequence[tuple[int, int, float]]
    load_s: float
    modest: int
    eval_s: float
    untrained_ratio: float
    longest_turn: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work that fits into the minutes, and the seconds of each part. Without `steps` there is no GRPO,
    for which `enough_minutes` are needed."""

    warm_steps: int
    batch_size: int
    group_size: int
    steps: int
    enough_minutes: float
    eval_tasks: int
    untrained_tasks: int
    eval_every: int
    max_new_tokens: int
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """Return the seconds of all parts."""
        return sum(self.seconds.values())

    def settings(self, *, minutes: float) -> dict[str, list[str]]:
        """Return the plan as settings of the warm start and of GRPO."""
        rate = _LEARNING_RATE * math.sqrt(self.batch_size * self.group_size / 16)
        grpo = [
            f"training.batch_size={self.batch_size}",
            f"rollout.group_size={self.group_size}",
            f"optimization.learning_rate={rate:.1e}",
            f"training.eval_tasks={self.eval_tasks}",
            f"training.eval_every={self.eval_every}",
            f"rollout.max_new_tokens={self.max_new_tokens}",
        ]
        if self.steps:
            over = _MOST_OVER * max(60 * minutes, self.total_s) - self.total_s + self.seconds["GRPO"]
            grpo += [f"training.max_steps={self.steps}", f"budget.wall_s={over:.0f}"]
        return {"warm_start": [f"training.max_steps={self.warm_steps}"], "grpo": grpo}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {duration(s)}" for name, s in self.seconds.items())
        grpo = (
            f"GRPO: {self.steps} steps of {self.batch_size} tasks x {self.group_size} attempts"
            if self.steps
            else f"no GRPO, for which --minutes {self.enough_minutes:.0f} are enough"
        )
        return (
            f"this takes about {duration(self.total_s)}: {parts}. Warm start: {self.warm_steps} steps; {grpo}"
            f"; evaluations: {self.eval_tasks} held-out tasks ({self.untrained_tasks} by the untrained "
            "model), greedy and sampled"
        )


@dataclass(frozen=True)
class _Around:
    """The parts before and after GRPO in so many minutes."""

    warm_steps: int
    eval_tasks: int
    untrained_tasks: int
    seconds: dict[str, float]


def _around(pace: Pace, minutes: float, heldout: int, warm_steps: int | None) -> _Around:
    # Greedy and sampled, by the warm start and the trained model, and twice by the untrained one.
    task_s, untrained_s = 4 * pace.eval_s, 4 * pace.untrained_ratio * pace.eval_s
    eval_tasks = min(heldout, max(LEAST["heldout"], int(_EVALUATION_SHARE * 60 * minutes / task_s)))
    untrained_tasks = min(
        eval_tasks, max(_LEAST_UNTRAINED, int(_UNTRAINED_SHARE * 60 * minutes / untrained_s))
    )
    evaluations_s = 4 * pace.load_s + eval_tasks * task_s + untrained_tasks * untrained_s
    if warm_steps is None:
        least, most = _WARM_STEPS
        left_s = 60 * minutes - evaluations_s - pace.load_s
        warm_steps = max(least, min(most, int(left_s / pace.supervised_s)))
    seconds = {
        "evaluations": evaluations_s,
        "warm start": pace.load_s + warm_steps * pace.supervised_s,
    }
    return _Around(warm_steps, eval_tasks, untrained_tasks, seconds)


def fit(pace: Pace, *, minutes: float, heldout: int, validation: int, warm_steps: int | None = None) -> Plan:
    """Return the largest plan that fits into the minutes: the largest step of which there can be enough,
    after `warm_steps` (None: as many as fit too). If not even a few of the smallest fit, there is no GRPO."""
    validation_s = validation * pace.eval_s
    begin_s = pace.load_s + validation_s  # validation comes before the first step too
    step_s = {(batch, group): s + validation_s / _EVAL_EVERY for batch, group, s in pace.steps_s}

    def around_s(minutes: float) -> float:
        return sum(_around(pace, minutes, heldout, warm_steps).seconds.values()) + begin_s

    steps = {shape: int((60 * minutes - around_s(minutes)) / s) for shape, s in step_s.items()}
    least = {s: _ENOUGH_STEPS if math.prod(s) > pace.modest else _FEW_STEPS for s in steps}
    shape = next((shape for shape in steps if steps[shape] >= least[shape]), min(steps))
    taken, every, enough = steps[shape], 0, minutes
    if taken < _LEAST_STEPS:
        taken, least_s = 0, _LEAST_STEPS * step_s[shape]
        while enough < (needed := (around_s(enough) + least_s) / 60):  # what comes around takes its share
            enough = math.ceil(needed)
    elif validation:  # the last step is one of those that are compared
        evaluations = max(1, round(taken / _EVAL_EVERY))
        every = taken // evaluations
        taken = every * evaluations
    around = _around(pace, minutes, heldout, warm_steps)
    batch, group = shape
    return Plan(
        warm_steps=around.warm_steps,
        batch_size=batch,
        group_size=group,
        steps=taken,
        enough_minutes=enough,
        eval_tasks=around.eval_tasks,
        untrained_tasks=around.untrained_tasks,
        eval_every=every,
        max_new_tokens=max(_LEAST_NEW_TOKENS, 2 * pace.longest_turn),
        seconds={**around.seconds, **({"GRPO": begin_s + taken * step_s[shape]} if taken else {})},
    )
