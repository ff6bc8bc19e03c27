"""The actor of a local run: a policy with the learner's weights, episodes on the I/O thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from mcpagent.core.intervals import MAX_UNSCORED
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.env.parsing import DIALECT_OF, observations, parse_action
from mcpagent.errors import UserError
from mcpagent.models.conversation import calling_message, seen_messages, thought
from mcpagent.models.tokens import Renderer, TokenDrift, measure_drift
from mcpagent.policy.canary import Canary
from mcpagent.rollout.collector import AgentSettings, Attempt, attempts, collect
from mcpagent.tools.setup import Tools
from mcpagent.train.health import StepReport
from mcpagent.train.learner.processes import Processes
from mcpagent.train.weight_sync import RolloutEngine


@dataclass(frozen=True, kw_only=True)
class ActorSettings:
    """The way in which an actor plays: `group_size` attempts at each task, `concurrency` episodes at once, in
    turn barriers if it is `deterministic`."""

    agent: AgentSettings
    group_size: int
    concurrency: int
    deterministic: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class ActorRecords:
    """The places where the episodes of an actor are counted and kept: `ledger` is that of the servers' calls,
    `tool_metrics` gives what the tools have counted since it was last asked, `on_part` is told how far the
    episodes of a step or an evaluation are, `on_validation` gets its step and its episodes, in the first
    process."""

    processes: Processes = field(default_factory=Processes)
    ledger: Path | None = None
    tool_metrics: Callable[[], JsonObject] = dict
    on_part: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    on_validation: Callable[[int, Sequence[Trajectory]], None] = lambda _step, _episodes: None


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One evaluation while training. `success` counts unscored episodes as failed: what the best checkpoint
    is chosen by, since episodes that drop out cannot raise it. `scored_success` is that of the others alone,
    None if there are none."""

    success: float
    scored_success: float | None
    episodes: int
    unscored: int

    @classmethod
    def of(cls, episodes: Sequence[Trajectory]) -> Validation:
        """Return what the episodes of an evaluation say, one at each task."""
        scored = [t.is_success for t in episodes if t.is_success is not None]
        return cls(
            success=sum(scored) / len(episodes),
            scored_success=sum(scored) / len(scored) if scored else None,
            episodes=len(episodes),
            unscored=len(episodes) - len(scored),
        )

    @property
    def is_doubtful(self) -> bool:
        """True if so many episodes are unscored that a lower success says little about the weights."""
        return self.unscored > MAX_UNSCORED * self.episodes


class LocalActor:
    """Collects and evaluates with the current weights, in this process. `version` counts the updates that
    the weights have seen."""

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        canary: Canary,
        renderer: Renderer,
        tools: Tools,
        settings: ActorSettings,
        records: ActorRecords,
        version: int = 0,
    ) -> None:
        self._engine, self._canary, self._version = engine, canary, version
        self._renderer, self._tools, self._io = renderer, tools.pool, tools.io
        self._settings, self._records, self._processes = settings, records, records.processes

    def collect(
        self, tasks: Sequence[Task], *, step: int, round_: int = 0, on_episode: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """`group_size` attempts at each task, in order; `round_` 1, 2, ... are further tasks of the same
        step. What `on_episode` raises ends the other episodes and is raised here."""
        label = f"step {step} round {round_}" if round_ else f"step {step}"
        size, seed = self._settings.group_size, self._settings.seed
        planned = attempts(tasks, per_task=size, seed=seed, label=label)
        total = len(tasks) * size
        return list(self._played("episodes", planned, total, self._settings.agent, on_episode))

    @property
    def ledger_bytes(self) -> int:
        """Return how much the servers have written to their ledger so far."""
        ledger = self._records.ledger
        return _size(ledger) if ledger is not None else 0

    def roll_back(self, ledger_bytes: int) -> None:
        """Forget the calls of a step that was cut."""
        if self._records.ledger is not None:
            roll_back(self._records.ledger, ledger_bytes)

    def tool_metrics(self) -> JsonObject:
        """Return what the tools have counted since this was last asked."""
        return self._records.tool_metrics()

    def rest(self) -> None:
        """Give the sampling engine's memory to the update. Nothing may be sampled until `sync`."""
        self._engine.rest()

    def sync(self) -> JsonObject:
        """Bring the learner's weights to the policy, and prove it; what the proof measured."""
        self._engine.push()
        self._version += 1
        return self.prove()

    def prove(self) -> JsonObject:
        """Raise RunError if the policy does not serve the learner's weights."""
        engine = self._engine
        proof = self._io.run(
            self._canary.prove(engine.policy, version=self._version, read_back=engine.read_back)
        )
        return proof.as_metrics()

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        """Return the greedy success on `tasks`; the episodes are recorded as `step-N`."""
        episodes = self.play(tasks, samples=1, temperature=0.0)
        if self._processes.is_first:
            self._records.on_validation(step, episodes)
        return Validation.of(episodes)

    def play(self, tasks: Sequence[Task], *, samples: int, temperature: float) -> Sequence[Trajectory]:
        """Play `samples` attempts at each task, of which each process plays its share; all get all of
        them."""
        agent = self._settings.agent
        agent = replace(agent, sampling=replace(agent.sampling, temperature=temperature))
        here = self._processes.share(tasks)
        planned = attempts(here, per_task=samples, seed=0, label="evaluation")
        played = self._played("evaluating", planned, len(here) * samples, agent)
        self._processes.meet()
        return self._processes.gather(played)

    def _played(
        self,
        what: str,
        planned: Iterable[Attempt],
        total: int,
        agent: AgentSettings,
        on_episode: Callable[[Trajectory], None] = lambda _: None,
    ) -> Sequence[Trajectory]:
        """The episodes of this process, whose number is told as they end."""
        ended = count(1)
        self._records.on_part(what, 0, total)

        def on_done(trajectory: Trajectory) -> None:
            self._records.on_part(what, next(ended), total)
            on_episode(trajectory)

        return self._io.run(
            collect(
                planned,
                policy=self._engine.policy,
                tools=self._tools,
                settings=agent,
                renderer=self._renderer,
                concurrency=self._settings.concurrency,
                deterministic=self._settings.deterministic,
                on_done=on_done,
            )
        )


def roll_back(ledger: Path, size: int) -> None:
    """Forget what the servers counted after `size` bytes: those calls belong to work that is done again."""
    if _size(ledger) > size:
        os.truncate(ledger, size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class DriftCallback:
    """Adds the drift of one episode a step to its record: the first with a history, since one is enough to
    see what a template does, and its cost stays far below that of a step."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def on_step(self, report: StepReport) -> None:
        """Add the token drift of the first episode with a tool call to the metrics of the step."""
        played = (t for t in report.trajectories if t.stop_reason is not StopReason.FAILED)
        episode = next((t for t in played if len(t.turns) > 1), None)
        if episode is None:
            return
        try:
            drift = episode_drift(self._renderer, episode)
        except UserError:
            return  # a history that this template cannot render at all, such as an unreadable call's answer
        report.metrics["drift_tokens"] = drift.changed
        report.metrics["drift_share"] = drift.share

    def should_stop(self) -> str | None:
        """Never: drift is a measurement, and no reason to end a run."""
        return None


def episode_drift(renderer: Renderer, episode: Trajectory) -> TokenDrift:
    """Return the drift of the context in which the last turn was sampled. Raises UserError if the template
    does not render that conversation."""
    # The tools are left out on both sides: a trajectory does not hold them, and they stand still.
    kept = list(renderer.prompt_ids(episode.prompt, ()))
    messages = list(episode.prompt)
    calls = any(turn.tool_calls for turn in episode.turns) and _knows_calls(renderer)
    for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
        kept += [*turn.completion.token_ids, *following.added_token_ids]
        messages.append(_said(turn.completion.text, renderer.tool_format, calls=calls))
        seen = observations(turn.tool_results, turn.parse_failures, turn.user_message, calls=turn.tool_calls)
        messages += seen_messages(seen)
    return measure_drift(renderer, kept, messages, ())


def _knows_calls(renderer: Renderer) -> bool:
    """Return whether a chat API with this template takes calls as such; otherwise, also if the dialect was
    taught in the system message, they are text."""
    return renderer.instruction is None and renderer.format.call_text("look", {}, ()) is not None


def _said(text: str, tool_format: str, *, calls: bool) -> JsonObject:
    """A sampled turn as a chat API holds it, with calls apart from text if `calls`."""
    parsed = parse_action(text, tool_format=tool_format)
    said: JsonObject = {"role": "assistant", "content": text.rpartition("</think>")[2].strip()}
    if calls and (parsed.calls or DIALECT_OF[tool_format].read_turn is not None):
        said["content"] = parsed.text
        if parsed.calls:
            made = calling_message(*((call.tool, call.arguments) for call in parsed.calls))
            said["tool_calls"] = made["tool_calls"]
    return said if parsed.thinking is None else {**said, **thought(parsed.thinking)}
