"""The reward as it is configured: weights of the rule's terms, and terms of one's own.

A term of one's own is a typed function of a task and an ended episode, named as `package.module:function`:

    def brief(task: Task, episode: EpisodeRecord) -> float: ...

It gives 0 to 1, the same for the same two. One that raises, or gives anything else, did not run: the episode
is unscored, and the trajectory says why.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from mcpagent.config.named_parts import load_named
from mcpagent.config.schema import RewardConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import RewardTerm, Trajectory
from mcpagent.errors import UserError
from mcpagent.reward.answer.verdict import GRADER
from mcpagent.reward.judge import JUDGE_TERM
from mcpagent.reward.record import EpisodeRecord, Graded, Reward, grade, record_of
from mcpagent.reward.rule import MAX_PENALTY, TERM_NAMES, WEIGHTS, with_penalty

_WHERE = "reward.terms"
_FORM = "write it as: def NAME(task: Task, episode: EpisodeRecord) -> float"
_RETURNS = (float, int, bool)
_PARAMETERS = (Task, EpisodeRecord)
_ROUNDING = 1e-9
NOT_RUN = "reward term"  # begins the error of a term that did not run


@dataclass(frozen=True, kw_only=True)
class TermFunction:
    """A term of one's own. `source_sha256` is that of the file that it is in."""

    name: str
    place: str
    function: Callable[[Task, EpisodeRecord], object]
    source_sha256: str

    def value(self, task: Task, record: EpisodeRecord) -> float | str:
        """Return what the function gives, or why that is no value of a term."""
        try:
            # Copies, because what a function changes would change the trajectory and the next episodes.
            value = self.function(task.model_copy(deep=True), deepcopy(record))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - boundary: code of the user's
            return f"{type(error).__name__}: {error}"
        if value is None:
            return "it returned None"
        if not isinstance(value, _RETURNS) or not math.isfinite(value) or not 0.0 <= value <= 1.0:
            return f"it returned {value!r}, and a term is a number from 0 to 1"
        return float(value)


@dataclass(frozen=True)
class RewardBounds:
    """The least that a success can earn and the most that a failure can, by the ranges of all terms."""

    lowest_success: float
    highest_failure: float

    @property
    def separates(self) -> bool:
        """True if every success is above every failure."""
        return self.lowest_success - self.highest_failure > _ROUNDING


@dataclass(frozen=True, kw_only=True)
class ConfiguredReward:
    """`weights` are those that were chosen, by term; the method of a task has the others."""

    weights: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    functions: tuple[TermFunction, ...] = ()

    def grade(self, task: Task, record: EpisodeRecord) -> Graded:
        """Return the terms of an ended episode: those of the method that its task names, then one's own."""
        terms = grade(task, record)
        if self.weights:
            terms = tuple(map(self._weighted, terms))
        errors: list[str] = []
        for each in self.functions:
            value = None if record.is_unscorable else each.value(task, record)
            if isinstance(value, str):
                errors.append(f"{NOT_RUN} {each.name} ({each.place}) did not run: {value}")
                value = None
            terms += (RewardTerm(name=each.name, value=value, weight=self.weights.get(each.name, 0.0)),)
        return Graded(terms, tuple(errors))

    def _weighted(self, term: RewardTerm) -> RewardTerm:
        if term.name not in self.weights:
            return term
        return term.model_copy(update={"weight": self.weights[term.name]})

    @property
    def effective_weights(self) -> dict[str, float]:
        """The weights by term, of the methods with a rule and of one's own."""
        unweighted = {each.name: 0.0 for each in self.functions}
        return {**WEIGHTS, **unweighted, **self.weights}

    @property
    def bounds(self) -> RewardBounds:
        """Success is 0 or 1, the penalty at most MAX_PENALTY, and any other term 0 to 1, whatever success
        is."""
        weights = self.effective_weights
        ranges = {name: MAX_PENALTY if name == "penalty" else 1.0 for name in weights if name != "success"}
        least = sum(min(0.0, weights[name]) * most for name, most in ranges.items())
        greatest = sum(max(0.0, weights[name]) * most for name, most in ranges.items())
        return RewardBounds(weights["success"] + least, greatest)

    @property
    def is_default(self) -> bool:
        """True if the reward is the one that the documentation states."""
        return not self.functions and self.effective_weights == WEIGHTS

    def as_json(self) -> JsonObject:
        """Return what a manifest and the provenance of a result say of the reward."""
        bounds = self.bounds
        return {
            "grader": GRADER,
            "weights": self.effective_weights,
            "terms": {
                each.name: {"function": each.place, "source_sha256": each.source_sha256}
                for each in self.functions
            },
            "lowest_success": round(bounds.lowest_success, 12),
            "highest_failure": round(bounds.highest_failure, 12),
            "every_success_above_every_failure": bounds.separates,
        }

    def notes(self) -> list[str]:
        """Return what a user is told of a reward that is not the default: the property, or what breaks it."""
        if self.is_default:
            return []
        bounds = self.bounds
        said = (
            f"reward: a success earns at least {bounds.lowest_success:g}, a failure at most "
            f"{bounds.highest_failure:g}"
        )
        if bounds.separates:
            return [f"{said}: every success is above every failure"]
        return [
            f"{said}: a failure can earn as much as a success, so training may reward failing; raise "
            "reward.weights.success, or lower the other weights"
        ]


DEFAULT_REWARD = ConfiguredReward()


def grader_of(facts: JsonObject) -> int:
    """Return the version of the grader that a manifest or a provenance names; the first was not named."""
    return facts.get("reward", {}).get("grader", 1)


def load_reward(config: RewardConfig) -> ConfiguredReward:
    """Return the reward of a configuration, its functions imported and looked at. Raises UserError."""
    if not config.weights and not config.terms:
        return DEFAULT_REWARD
    functions = tuple(_load(place) for place in config.terms)
    return ConfiguredReward(weights=dict(config.weights), functions=functions)


def regraded(task: Task, trajectory: Trajectory, reward: Reward) -> Trajectory:
    """Return a stored episode as `reward` grades it now; a penalty that was out of force stays so."""
    graded = reward.grade(task, record_of(task, trajectory))
    terms = graded.terms
    if any(term.name == "penalty" and term.weight == 0.0 for term in trajectory.reward_terms):
        terms = with_penalty(terms, active=False)
    errors = [error for error in trajectory.errors if not error.startswith(NOT_RUN)]
    told = {"reward_terms": terms, "grader": GRADER, "errors": (*errors, *graded.errors)}
    return trajectory.model_copy(update=told)


def _load(place: str) -> TermFunction:
    function = load_named(place, where=_WHERE)
    name = place.partition(":")[2]
    if name in (*TERM_NAMES, JUDGE_TERM):
        raise _refused(place, f"is called {name}, as a term of the rule is", "rename the function")
    if problem := _signature_problem(function):
        raise _refused(place, problem, _FORM)
    try:
        source = Path(inspect.getsourcefile(function) or "").read_bytes()
    except (TypeError, OSError):
        raise _refused(
            place,
            "has no Python source, whose hash would be kept with the run",
            "name a function of a .py file",
        ) from None
    return TermFunction(
        name=name, place=place, function=function, source_sha256=hashlib.sha256(source).hexdigest()
    )


def _signature_problem(function: object) -> str | None:
    if not inspect.isfunction(function):
        return f"is not a function but {type(function).__name__}"
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_one(function) for is_one in kinds):
        return "is a coroutine or a generator, and a term is a plain function"
    signature = inspect.signature(function)
    try:
        bound = signature.bind(None, None)
    except TypeError as error:
        return f"does not take a task and an episode: {error}"
    hints = _hints(function)
    if "return" not in hints:
        return "does not say what it returns"
    if not _is_number(hints["return"]):
        return f"returns {_shown(hints['return'])}, and a term is a float"
    for name, expected in zip(bound.arguments, _PARAMETERS, strict=False):
        annotated = hints.get(name, expected)
        if annotated not in (expected, expected.__name__, object, typing.Any):
            return f"takes {_shown(annotated)} as {name}, where {expected.__name__} comes"
    return None


def _hints(function: Callable[..., object]) -> dict[str, object]:
    """Annotations; as written where their names are for type checkers only."""
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):
        return dict(inspect.get_annotations(function))


def _is_number(hint: object) -> bool:
    if isinstance(hint, str):
        parts = [part.strip() for part in hint.split("|")]
        return any(part in ("float", "int", "bool") for part in parts) and set(parts) <= {
            *("float", "int", "bool", "None")
        }
    kinds = typing.get_args(hint) or (hint,)
    return any(kind in _RETURNS for kind in kinds) and all(kind in (*_RETURNS, type(None)) for kind in kinds)


def _shown(hint: object) -> str:
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def _refused(place: str, problem: str, remedy: str) -> UserError:
    return UserError(f"{place} {problem}", where=_WHERE, remedy=remedy)
