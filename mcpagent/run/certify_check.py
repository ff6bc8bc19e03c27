"""Check a certificate against its own evidence.

Nothing of `certificate.json` is believed. Everything is made again from the folder, and whatever differs is
named: the document is what `certificate.derived` derives; an episode is what its sampled tokens make under
the folder's weights, on the recorded answers of the tools, graded by this installation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Completion, FinishReason, Trajectory
from mcpagent.errors import EpisodeError, UserError
from mcpagent.evaluate.attacks import play_attacks
from mcpagent.evaluate.certificate import (
    ATTACKS,
    BASELINE,
    SIDES,
    Opened,
    Side,
    contradictions,
    derived,
    open_evidence,
    read_certificate,
)
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.rollout.collector import Attempt, collect
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.policies import ReadyPolicy, open_policy
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.trajectories import ById
from mcpagent.tools.cassettes.cassette import Cassette
from mcpagent.tools.contract import PinnedTools
from mcpagent.tools.io_thread import IOThread

_EXACT = 1e-9
_MOST_APART = 20.0  # times the tolerance: the most that one token may be apart


@dataclass(frozen=True)
class Fraud:
    """Something that does not hold. `name` is the check that failed, one of `CHECKS`."""

    name: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class _Inspection:
    """A certificate as the checks see it: with the models of both sides from the folder's own weights, none
    of whose code runs, and its recorded tools. `replay` episodes of each side are played again."""

    opened: Opened
    models: Mapping[str, ReadyPolicy]
    tape: PinnedTools
    io: IOThread
    replay: int
    console: Console

    def play(
        self,
        side: str,
        attempts: Iterable[Attempt],
        policy: Policy,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> Sequence[Trajectory]:
        """Play attempts of a side again on the recorded tools."""
        most = self.opened.certificate.sides[side].max_context_tokens
        playing = collect(
            attempts,
            policy=policy,
            tools=self.tape,
            settings=agent_settings(self.opened.settings(side), max_context=most),
            renderer=self.models[BASELINE].renderer,  # all sides have the same template
            concurrency=max(1, self.replay),
            on_done=on_done,
        )
        return self.io.run(playing)


def check(folder: Path, *, replay: int = 0, console: Console | None = None) -> Sequence[Fraud]:
    """Make everything in the folder again; with `replay`, play so many episodes of each side again. Return
    what does not hold. Raises UserError if the folder cannot be read."""
    opened = open_evidence(folder, read_certificate(folder))
    frauds, name, console = list[Fraud](), "statements", console or Console()
    try:
        with IOThread() as io, ExitStack() as stack:
            limit = opened.settings().tools.result_limit_chars
            tape = Cassette.alone(folder / "cassette", result_limit_chars=limit)
            models: dict[str, ReadyPolicy] = {}
            for side in SIDES:
                config, slots = opened.settings(side), max(1, replay)
                model = open_policy(
                    config.model.name, tasks=(), config=config, slots=slots, io=io, on_note=console.note
                )
                models[side] = stack.enter_context(model)
            at = _Inspection(opened=opened, models=models, tape=tape, io=io, replay=replay, console=console)
            for name, find in CHECKS.items():
                frauds += [Fraud(name, detail) for detail in find(at)]
    except UserError as error:
        frauds.append(Fraud(name, f"{error.where or folder} cannot be used: {error.message}"))
    return frauds


def side_of(model: ReadyPolicy, *, most: int | None = None) -> Side:
    """Return what a certificate tells of a model, whose context was limited to `most` tokens."""
    assert model.renderer is not None and model.max_context is not None  # it is a model
    context = min(model.max_context, most or model.max_context)
    told = {name: model.identity[name] for name in ("weights_sha256", "dtype", "chat_template_sha256")}
    return Side(**told, max_context_tokens=context, tool_format=model.renderer.tool_format)


def _statements(at: _Inspection) -> Iterator[str]:
    """certificate.json states something that does not follow from the folder, or that the run's own records
    contradict."""
    stated = at.opened.certificate
    limits = {side: stated.sides[side].max_context_tokens for side in at.models}
    sides = {side: side_of(model, most=limits[side]) for side, model in at.models.items()}
    real = derived(at.opened, sides)
    for path, said, is_ in _differences(stated.model_dump(mode="json"), real.model_dump(mode="json")):
        yield f"{path} is {said}, and {is_} follows from the folder"
    yield from contradictions(at.opened, sides[BASELINE], at.tape.catalog_hash)


def _differences(stated: Any, real: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the place and both values of everything in which two documents differ."""
    if isinstance(stated, dict) and isinstance(real, dict):
        for key in sorted(stated.keys() | real.keys()):
            yield from _differences(stated.get(key), real.get(key), f"{path}.{key}" if path else key)
    elif isinstance(stated, list) and isinstance(real, list):
        for place, (one, other) in enumerate(zip_longest(stated, real)):
            yield from _differences(one, other, f"{path}.{place}")
    elif isinstance(stated, float | int) and isinstance(real, float | int):
        if not math.isclose(stated, real, rel_tol=_EXACT, abs_tol=_EXACT):
            yield path, stated, real
    elif stated != real:
        yield path, stated, real


def _episodes(at: _Inspection) -> Iterator[str]:
    """An episode is missing, is one too many, is another one if its tokens are said again, or has logprobs
    that the weights do not give. The attacks are made again from the plans."""
    opened = at.opened
    for side, episodes in opened.episodes.items():
        stored = ById(episodes)
        if side == ATTACKS:
            settings = agent_settings(opened.settings(), max_context=None)
            again = at.io.run(play_attacks(opened.counted, tools=at.tape, settings=settings))
        else:
            again = at.play(side, opened.attempts(), _Recorded(stored, at.models))
        made = ById(again)
        for name in sorted(stored.keys() - made.keys()):
            yield f"{side}: {name} is one too many"
        for name, one in made.items():
            problem = _problem(stored.get(name), one)
            if problem is None and side in at.models:
                problem = _unlikely(at, side, stored[name])
            if problem is not None:
                yield f"{side}: {name}: {problem}"


class _Recorded:
    """Stored episodes as a policy that says them again: their tokens, and the text that these decode to."""

    def __init__(self, stored: Mapping[str, Trajectory], models: Mapping[str, ReadyPolicy]) -> None:
        self._stored = stored
        self._said: dict[str, int] = {}  # turns, by episode
        self._renderer = models[BASELINE].renderer

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Say the next turn of each episode, as far as the limit of tokens allows it."""
        return [self._next(request) for request in requests]

    def _next(self, request: CompletionRequest) -> Completion:
        name = request.episode_id
        turns = self._stored[name].turns if name in self._stored else ()
        place = self._said.get(name, 0)
        if place >= len(turns):
            raise EpisodeError("the episode goes on, and nothing more is stored")
        self._said[name] = place + 1
        done, most = turns[place].completion, request.sampling.max_new_tokens
        ids = done.token_ids
        # The agent finds out by itself if a cut completion filled the context.
        was_cut = len(ids) >= most or done.finish_reason is FinishReason.OVERFLOW
        was_cut = was_cut and done.finish_reason is not FinishReason.STOP
        assert self._renderer is not None
        update: JsonObject = {
            "text": self._renderer.decode(ids),
            "token_ids": ids[:most],
            "finish_reason": FinishReason.LENGTH if was_cut else FinishReason.STOP,
        }
        return done.model_copy(update=update)

    async def release(self, episode_id: str) -> None:
        """Keep nothing for the episode."""


def _problem(stored: Trajectory | None, again: Trajectory) -> str | None:
    """Return what is wrong with a stored episode; None if it is what its tokens make."""
    if stored is None:
        return "it was not played"
    if stored.is_success is None:  # a failure of a server is not on the tape
        return "it is left out as broken, and can be graded" if again.is_success is not None else None
    differing = [path for path, _, _ in _differences(_facts(stored), _facts(again))]
    more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
    return f"said again, it differs in {', '.join(differing[:4])}{more}" if differing else None


def _facts(t: Trajectory) -> JsonObject:
    """Return what of an episode follows from its tokens: all but times, and where results came from."""
    measured = {"__all__": {"latency_s", "meta", "from_cassette"}}
    turns = {"__all__": {"wall_s": True, "tool_results": measured}}
    document = t.model_dump(mode="json", exclude={"turns": turns, "state_results": measured})
    return {**document, "tokens": _tokens(t)}


def _tokens(t: Trajectory) -> JsonObject:
    return {
        str(turn.index): {"shown": turn.added_token_ids, "said": turn.completion.token_ids}
        for turn in t.turns
    }


def _unlikely(at: _Inspection, side: str, t: Trajectory) -> str | None:
    """Return how far the logprobs of an episode are from those that the side's weights give; None if not far.
    Nothing of how its tokens were sampled is used."""
    from mcpagent.models.logits import continuation_logprobs

    model, certificate = at.models[side].model, at.opened.certificate
    size, limit = model.get_input_embeddings().num_embeddings, certificate.sides[side].tolerance
    temperature = certificate.conditions["rollout.temperature"]
    context: list[int] = []
    apart: list[float] = []
    for turn in t.turns:
        context += turn.added_token_ids
        ids, stored = turn.completion.token_ids, turn.completion.logprobs
        if len(ids) != len(stored) or not all(0 <= i < size for i in (*turn.added_token_ids, *ids)):
            return "it has tokens without a logprob, or that the model does not have"
        if ids:
            scored = continuation_logprobs(model, context, ids, temperature=temperature)
            apart += [abs(a - b) for a, b in zip(stored, scored, strict=True)]
        context += ids
    if not apart:
        return None
    mean = sum(apart) / len(apart)
    # Not `>`: a difference that is not a number must not pass.
    is_near = mean <= limit and max(apart) <= _MOST_APART * limit
    return None if is_near else f"logprobs are {mean:.2g} nats apart a token"


def _replay(at: _Inspection) -> Iterator[str]:
    """The model, played again with the same seeds on the cassette, does something else. Which episodes it
    plays is drawn by chance: who makes a certificate must not know."""
    for side, model in at.models.items():
        stored = ById(at.opened.episodes[side])
        every = [attempt for attempt in at.opened.attempts() if attempt.episode_id in stored]
        sample = random.sample(every, min(at.replay, len(every)))
        with episode_progress(at.console, f"replay of {side}", total=len(sample)) as on_done:
            again = at.play(side, sample, model.policy, on_done)
        differing = [t.id for t in again if _tokens(t) != _tokens(stored[t.id])]
        is_exact = (model.identity["dtype"], model.identity["device"]) == ("float32", "cpu")
        # Elsewhere another number of rows moves logits enough to change a token now and then.
        if len(differing) > (0 if is_exact else len(sample) / 4):
            yield f"{side}: {differing[0]} and {len(differing) - 1} more of {len(sample)}"


CHECKS: Mapping[str, Callable[[_Inspection], Iterator[str]]] = {
    "statements": _statements,
    "episodes": _episodes,
    "replay": _replay,
}
