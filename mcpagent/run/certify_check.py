"""Check a certificate against its own evidence.

Nothing of `certificate.json` is believed: what it states is compared with what `certificate.derived` derives,
and each episode with the one that its texts make when they are said again: on the recorded answers of the
tools, graded by this installation. With the weights, its tokens and logprobs are computed again too.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpagent.config.loader import load_train_config
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Completion, FinishReason, StopReason, Trajectory
from mcpagent.errors import EpisodeError, UserError
from mcpagent.evaluate.attacks import play_attacks
from mcpagent.evaluate.certificate import (
    ATTACKS,
    BASELINE,
    TRAINED,
    Opened,
    Side,
    code_facts,
    derived,
    file_hashes,
    open_certificate,
)
from mcpagent.models.probe import TOLERANCE
from mcpagent.policy.contract import CompletionRequest
from mcpagent.reward.judge import JudgeRules, RecordedJudge, is_open_to_judge, judgement_problem
from mcpagent.reward.record import record_of
from mcpagent.rollout.agent import run_attempt
from mcpagent.rollout.collector import collect
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.datasets import DiskList
from mcpagent.storage.trajectories import ById
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.io_thread import IOThread

if TYPE_CHECKING:
    from mcpagent.train.load import Loaded

_EXACT = 1e-9
_MOST_APART = 20.0  # times the tolerance: the most that one token may be apart
Found = Iterator[tuple[str, str]]  # where something does not hold, and what it is


@dataclass(frozen=True)
class Fraud:
    """Something that does not hold. `name` is the check that failed, one of `CHECKS`."""

    name: str
    detail: str
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """`figures` are those that are stated, `not_checked` says what could not be. If something does not hold,
    `other_version` says whether another version of mcpagent made the certificate, which need not be a
    fraud."""

    figures: JsonObject
    frauds: Sequence[Fraud]
    not_checked: Sequence[str]
    other_version: str | None

    def as_json(self) -> JsonObject:
        """Return the document of `certify --check --json`."""
        return {
            "holds": not self.frauds,
            "frauds": self.frauds,
            "checked": sorted(CHECKS.keys() - set(self.not_checked)),
            "not_checked": list(self.not_checked),
            "other_version": self.other_version,
        }


@dataclass(frozen=True)
class _Inspection:
    """A certificate as the checks see it; `replay` episodes of each side are played again."""

    opened: Opened
    replay: int
    console: Console

    @cached_property
    def models(self) -> Mapping[str, Loaded]:
        """The models of both sides from the folder's own weights, none of whose code runs; empty if one of
        them is not there."""
        from mcpagent.train.load import load

        models: dict[str, Loaded] = {}
        for side in (BASELINE, TRAINED) if self.opened.has_weights else ():
            stated = self.opened.certificate.sides[side]
            settings = {
                "model.name": json.dumps(str(self.opened.folder / "weights" / side)),
                "model.dtype": stated.dtype,
                "rollout.tool_format": stated.tool_format,
                "rollout.backend": "hf",
            }
            overrides = [f"{key}={value}" for key, value in settings.items()]
            models[side] = load(load_train_config([], overrides, for_training=False).config)
        return models


def check(folder: Path, *, replay: int = 0, console: Console | None = None) -> CheckOutcome:
    """Derive everything in the folder again; with `replay`, play so many episodes of each side again. Raises
    UserError if the folder cannot be read, or has no weights to replay."""
    opened = open_certificate(folder)
    if replay and not opened.has_weights:
        raise UserError("has no weights to play with", where=str(folder), remedy="check it without --replay")
    inspection = _Inspection(opened, replay, console or Console())
    skipped = {"weights": not opened.has_weights, "replay": not replay}
    frauds: list[Fraud] = []
    try:
        for name, find in CHECKS.items():
            if not skipped.get(name):
                for where, detail in find(inspection):
                    frauds.append(Fraud(name, detail, where))
    except UserError as error:
        frauds.append(Fraud("files", f"cannot be used: {error.message}", error.where or ""))
    return CheckOutcome(
        figures=opened.certificate.figures,
        frauds=frauds,
        not_checked=[name for name, is_skipped in skipped.items() if is_skipped],
        other_version=_other_version(opened) if frauds else None,
    )


def _other_version(opened: Opened) -> str | None:
    made, here = opened.certificate.code, code_facts()
    if made.get("source_sha256") == here["source_sha256"]:
        return None
    return (
        f"It says that another version of mcpagent made it ({made.get('versions', {}).get('mcpagent')}, "
        f"source {str(made.get('source_sha256'))[:12]}; this is {here['source_sha256'][:12]}), which may "
        "grade or derive intervals in another way: check it with that version before you call it forged."
    )


def _files(at: _Inspection) -> Found:
    """A file is not the one that was certified."""
    stated, present = at.opened.certificate.files, file_hashes(at.opened.folder)
    for name in sorted(stated.keys() | present.keys()):
        if stated.get(name) != present.get(name):
            yield name, "is not the file that was certified, or one of the two is missing"


def _statements(at: _Inspection) -> Found:
    """certificate.json states something that does not follow from the folder."""
    pair = (at.opened.certificate, derived(at.opened))
    stated, real = (json.loads(each.model_dump_json(exclude={"files"})) for each in pair)
    for path, said, is_ in _differences(stated, real):
        yield "", f"{path} is {said}, and {is_} follows from the folder"


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


def _records(at: _Inspection) -> Found:
    """The run's records do not fit, lack steps, or do not prove its weight sync."""
    certificate, records = at.opened.certificate, at.opened.records["run"]
    for fact, what in (("tools_are_the_runs", "other tools"), ("train_is_the_runs", "other tasks")):
        if certificate.run.get(fact) is False:
            yield "", f"the run was trained with {what} than those in the folder"
    of_run = (at.opened.manifest.get("reward") or {}).get("judge")
    if certificate.judge and of_run and of_run["identity"] != certificate.judge["identity"]:
        yield "", "the run was trained with another judge"
    steps = [record.get("step") for record in records]
    if steps != list(range(1, len(steps) + 1)) or len(steps) < certificate.checkpoint_step:
        yield "", "metrics.jsonl does not have every step of the run"
    limit = _tolerance(certificate.sides[TRAINED])
    for record in records:
        proof, step = record.get("canary_difference"), record.get("step")
        if proof is None and at.opened.config.get("algorithm") == "grpo":
            yield "", f"step {step} has no proof of weight sync"
        elif proof is not None and not 0.0 <= proof <= limit:
            yield "", f"step {step}: weights {proof} nats apart, and {limit} is allowed"


def _tolerance(side: Side) -> float:
    return TOLERANCE.get(side.dtype, max(TOLERANCE.values()))


def _episodes(at: _Inspection) -> Found:
    """An episode is missing, is one too many, or is another one if its texts are said again."""
    opened = at.opened
    tasks = {task.id: task for task in opened.counted}
    renderer = at.models[BASELINE].renderer if at.models else None
    with IOThread() as io, opened.cassette as tape:
        for side, episodes in opened.episodes.items():
            stored = ById(episodes)
            again = ById(io.run(_said_again(opened, side, stored, tape, renderer)))
            for name in sorted(stored.keys() - again.keys()):
                yield side, f"{name} is one too many"
            for name, one in again.items():
                problem = _problem(stored.get(name), one, tasks[one.task_id], opened.judge)
                if problem is not None:
                    yield side, f"{name}: {problem}"


async def _said_again(
    opened: Opened, side: str, stored: ById[Trajectory], tools: ToolProvider, renderer: Any
) -> Sequence[Trajectory]:
    """Return the episodes of a side, said again from their texts; the attacks are made again from the
    plans."""
    played_by = opened.certificate.sides[BASELINE if side == ATTACKS else side]
    settings = opened.certificate.conditions.settings(played_by)

    def judge_of(name: str) -> RecordedJudge:
        return RecordedJudge(stored[name].judgement if name in stored else None)

    if side == ATTACKS:
        return await play_attacks(opened.counted, tools=tools, settings=settings, judge_of=judge_of)
    again: DiskList[Trajectory] = DiskList()
    for attempt in opened.attempts():
        recorded = _Recorded(stored.get(attempt.episode_id), played_by, renderer)
        again.append(
            await run_attempt(
                attempt,
                policy=recorded,
                tools=tools,
                settings=replace(settings, judge=judge_of(attempt.episode_id)),
                renderer=renderer or recorded,
            )
        )
    return again


class _Recorded:
    """A stored episode as a policy that says it again. It is the renderer too, if there is no model's: the
    tokens of its messages are taken as they are then, and its texts need not be those of its tokens."""

    def __init__(self, stored: Trajectory | None, side: Side, renderer: Any) -> None:
        turns = () if stored is None else stored.turns
        self.tool_format = side.tool_format
        self._completions = iter([turn.completion for turn in turns])
        self._added = iter([turn.added_token_ids for turn in turns])
        overflows = stored is not None and stored.stop_reason is StopReason.CONTEXT_OVERFLOW
        self._last_added = (0,) * (side.max_context_tokens if overflows else 0)
        self._renderer = renderer

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Say the next turn, as far as the limit of tokens allows it."""
        done = next(self._completions, None)
        if done is None:
            raise EpisodeError("the episode goes on, and nothing more is stored")
        ids, most = done.token_ids, requests[0].sampling.max_new_tokens
        # The agent finds out by itself if a cut completion filled the context.
        was_cut = len(ids) >= most or done.finish_reason is FinishReason.OVERFLOW
        was_cut = was_cut and done.finish_reason is not FinishReason.STOP
        update: JsonObject = {
            "token_ids": ids[:most],
            "finish_reason": FinishReason.LENGTH if was_cut else FinishReason.STOP,
        }
        if self._renderer is not None:
            update["text"] = self._renderer.decode(ids)
        return [done.model_copy(update=update)]

    async def release(self, episode_id: str) -> None:
        """Keep nothing for the episode."""

    def prompt_ids(self, messages: list[JsonObject], tools: tuple[JsonObject, ...]) -> tuple[int, ...]:
        """Return the stored tokens; more than the context holds if the episode ended by that."""
        return next(self._added, self._last_added)

    def suffix_ids(self, observations: list[JsonObject], *, ended_by: int | None) -> tuple[int, ...]:
        """Return the stored tokens, as `prompt_ids`."""
        return next(self._added, self._last_added)


def _problem(
    stored: Trajectory | None, again: Trajectory, task: Task, judge: JudgeRules | None
) -> str | None:
    """Return what is wrong with a stored episode; None if it is what its texts make."""
    if stored is None:
        return "it was not played"
    record = record_of(task, again)
    if (judge is not None and is_open_to_judge(task, record)) != (stored.judgement is not None):
        return "a verdict of the judge is missing, or one too many"
    if stored.is_success is None:  # a failure of a server is not on the tape
        return "it is left out as broken, and can be graded" if again.is_success is not None else None
    differing = [path for path, _, _ in _differences(_facts(stored), _facts(again))]
    if differing:
        more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
        return f"said again, it differs in {', '.join(differing[:4])}{more}"
    if judge is None or stored.judgement is None:
        return None
    return judgement_problem(task, record, stored.judgement, judge)


def _facts(t: Trajectory) -> JsonObject:
    """Return what of an episode follows from its texts: all but times, and where results came from."""
    measured = {"__all__": {"latency_s", "meta", "from_cassette"}}
    turns = {"__all__": {"wall_s": True, "tool_results": measured}}
    document = t.model_dump(mode="json", exclude={"turns": turns, "state_results": measured})
    return {**document, "tokens": _tokens(t)}


def _tokens(t: Trajectory) -> JsonObject:
    return {
        str(turn.index): {"shown": turn.added_token_ids, "said": turn.completion.token_ids}
        for turn in t.turns
    }


def _weights(at: _Inspection) -> Found:
    """The weights have another chat template, or do not give the logprobs of an episode."""
    certificate = at.opened.certificate
    for side, loaded in at.models.items():
        template, limit = str(loaded.tokenizer.chat_template), _tolerance(certificate.sides[side])
        if hashlib.sha256(template.encode()).hexdigest() != certificate.sides[side].chat_template_sha256:
            yield side, "the model has another chat template than the certificate says"
        for trajectory in at.opened.episodes[side]:
            stored = [value for turn in trajectory.turns for value in turn.completion.logprobs]
            if not stored:
                continue
            try:
                scored = _logprobs(loaded.model, trajectory, certificate.conditions.temperature)
                apart = [abs(a - b) for a, b in zip(stored, scored, strict=True)]
            except (IndexError, ValueError):
                yield side, f"{trajectory.id}: tokens that the model does not have"
                continue
            mean = sum(apart) / len(apart)
            # Not `>`: a difference that is not a number must not pass.
            if not mean <= limit or not max(apart) <= _MOST_APART * limit:
                yield side, f"{trajectory.id}: logprobs are {mean:.2g} nats apart a token"


def _logprobs(model: Any, trajectory: Trajectory, temperature: float) -> list[float]:
    """Return those of the sampled tokens, in one pass over the whole episode: nothing of how they were
    sampled is used."""
    import torch

    context: list[int] = []
    places: list[int] = []
    for turn in trajectory.turns:
        context += turn.added_token_ids
        places += range(len(context), len(context) + len(turn.completion.token_ids))
        context += turn.completion.token_ids
    if max(context) >= model.get_input_embeddings().num_embeddings or min(context) < 0:
        raise IndexError(max(context))
    with torch.inference_mode():
        ids = torch.tensor([context], device=next(model.parameters()).device)
        logits = model(input_ids=ids).logits[0, [place - 1 for place in places]].float()
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        return logprobs.gather(1, ids[0, places].unsqueeze(1)).squeeze(1).tolist()


def _replay(at: _Inspection) -> Found:
    """The model, played again with the same seeds on the cassette, does something else. Which episodes it
    plays is drawn by chance: who makes a certificate must not know."""
    from mcpagent.train.sampler import open_sampler

    opened, conditions = at.opened, at.opened.certificate.conditions
    config = load_train_config([], ["rollout.backend=hf"], for_training=False).config
    for side, loaded in at.models.items():
        stored = ById(opened.episodes[side])
        every = [attempt for attempt in opened.attempts() if attempt.episode_id in stored]
        sample = random.sample(every, min(at.replay, len(every)))
        with (
            opened.cassette as tape,
            IOThread() as io,
            open_sampler(loaded, config, model=loaded.model, slots=len(sample)) as sampler,
            episode_progress(at.console, f"replay of {side}", total=len(sample)) as on_done,
        ):
            playing = collect(
                sample,
                policy=sampler.policy,
                tools=tape,
                settings=conditions.settings(opened.certificate.sides[side]),
                renderer=loaded.renderer,
                concurrency=len(sample),
                on_done=on_done,
            )
            again = io.run(playing)
        differing = [t.id for t in again if _tokens(t) != _tokens(stored[t.id])]
        is_exact = opened.certificate.sides[side].dtype == "float32" and loaded.device.type == "cpu"
        # Elsewhere another number of rows moves logits enough to change a token now and then.
        if len(differing) > (0 if is_exact else len(sample) / 4):
            yield side, f"{differing[0]} and {len(differing) - 1} more of {len(sample)}"


CHECKS: Mapping[str, Callable[[_Inspection], Found]] = {
    "files": _files,
    "statements": _statements,
    "records": _records,
    "episodes": _episodes,
    "weights": _weights,
    "replay": _replay,
}
