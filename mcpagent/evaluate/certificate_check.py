"""Derives a certificate again from its evidence, and names what does not hold.

Nothing of `certificate.json` is believed. Each episode is carried out again from the model's texts alone, on
the recorded answers of the tools, and graded by this installation; every figure follows from what comes out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.registry import REWARD_METHODS
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolResult
from mcpagent.core.trajectory import FinishReason, StopReason, Trajectory
from mcpagent.env.episode import Episode, EpisodeLimits, prompt_messages
from mcpagent.errors import EpisodeError, RunError, UserError
from mcpagent.evaluate.attacks import GOLD, attack_scripts, spoken
from mcpagent.evaluate.certificate import (
    ATTACKS,
    BASELINE,
    JUDGE_PROMPTS,
    PAGE,
    TRAINED,
    Certificate,
    Evidence,
    Opened,
    certified_judge,
    committed_seed,
    figures,
    file_hashes,
    sha256_of,
    task_file,
)
from mcpagent.evaluate.certificate_page import certificate_page
from mcpagent.policy.canary import TOLERANCE
from mcpagent.reward.judge import JudgeRules, RecordedJudge, is_open_to_judge, judgement_problem
from mcpagent.reward.record import EpisodeRecord
from mcpagent.rollout.agent import ContextRenderer
from mcpagent.rollout.collector import attempts
from mcpagent.storage.checkpoints import weights_sha256
from mcpagent.storage.datasets import DiskList, text_digest
from mcpagent.storage.trajectories import ById
from mcpagent.tools.cassettes.cassette import Cassette
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.io_thread import IOThread

# What a check can find, and what each means.
FRAUDS = {
    "evidence changed": "a file is not the one that the certificate was made with",
    "page edited": "the page says something else than the certificate",
    "figure edited": "a figure is not what the episodes come to",
    "leaked split": "a task that training had is counted",
    "tasks changed": "the held-out tasks are not those that the run had when it began",
    "training tasks changed": "the training tasks are not those that the run was trained on",
    "tasks dropped": "a held-out task has no episodes, or is excluded without a reason",
    "seed chosen": "the seed does not follow from the tasks, the models and the settings",
    "attempts picked": "an episode is not the attempt that it should be, is there twice, or lacks",
    "budget unequal": "a side had other limits of attempts, turns or tokens than it should",
    "prompt edited": "a side was asked something else than the task asks",
    "calls edited": "the calls of an episode are not those in the model's text",
    "results edited": "a tool did not answer what the episode says",
    "ending edited": "an episode did not end as it says, or not with that answer",
    "verdict edited": "the reward grades an episode otherwise",
    "unscored hidden": "an episode is left out as broken, and is not",
    "tokens edited": "the tokens of an episode are not those of its texts, or have no logprobs",
    "stale adapter": "the trained side played with the weights of the baseline",
    "other base": "the baseline is not the model that the run began with",
    "weights changed": "the weights in the folder are not those of the certificate",
    "other weights": "an episode was not sampled from these weights at that temperature",
    "not replayed": "the model, played again, does something else",
    "template changed": "the two sides were shown other chat templates or tool formats",
    "tools changed": "the tools are not those of the run, or differ between the sides",
    "judge swapped": "an episode is graded by another method or judge than the certificate says",
    "reward changed": "the run was trained on another reward than the certificate says",
    "attacks dropped": "an attack on the reward was not made, or made otherwise",
    "weight sync unproven": "the run's records lack steps or proofs, or a proof failed",
    "control cheaper": "a control had less to spend than the certificate says",
}
_EXACT = 1e-9


@dataclass(frozen=True)
class Fraud:
    """Something that does not hold. `name` is one of `FRAUDS`."""

    name: str
    detail: str
    where: str = ""


def check_certificate(
    opened: Opened,
    *,
    renderer: ContextRenderer | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> list[Fraud]:
    """Everything that does not hold, as far as it can be told without a model. With the `renderer` of the
    models their tokens are held against their texts too."""
    frauds = [
        *_files(opened),
        *_tasks(opened),
        *_attempts(opened),
        *_sides(opened),
        *_grading(opened),
        *_records(opened),
    ]
    judge = None
    try:
        judge = certified_judge(opened)
    except UserError as error:
        frauds.append(Fraud("judge swapped", error.message, JUDGE_PROMPTS))
    try:
        tape = _cassette(opened)
    except UserError as error:
        return [*frauds, Fraud("results edited", f"the tape cannot be used: {error.message}", "cassette")]
    with IOThread() as io, tape as tools:
        frauds += _tools(opened, tools.catalog_hash)
        played, differing = io.run(_play_again(opened, tools, judge, renderer, decode))
    return [*frauds, *differing, *_figures(opened, played)]


def _cassette(opened: Opened) -> Cassette:
    limit = opened.certificate.conditions.result_limit_chars
    return Cassette.alone(opened.folder / "cassette", result_limit_chars=limit)


def _files(opened: Opened) -> Iterator[Fraud]:
    stated, present = opened.certificate.files, file_hashes(opened.folder)
    for name in sorted(stated.keys() | present.keys()):
        if name not in present:
            yield Fraud("evidence changed", "is missing", name)
        elif name not in stated:
            yield Fraud("evidence changed", "was added", name)
        elif stated[name] != present[name]:
            yield Fraud("evidence changed", "has other contents than when it was certified", name)
    page = opened.folder / PAGE
    if page.is_file() and page.read_text(encoding="utf-8") != certificate_page(opened.certificate):
        yield Fraud("page edited", FRAUDS["page edited"], PAGE)


def _tasks(opened: Opened) -> Iterator[Fraud]:
    certificate = opened.certificate
    for split, fraud, registered in (
        ("heldout", "tasks changed", opened.manifest.get("heldout")),
        ("train", "training tasks changed", opened.manifest.get("data")),
    ):
        actual = sha256_of(task_file(opened.folder, split))
        if actual != certificate.datasets.get(split):
            yield Fraud(fraud, f"the certificate names another file ({actual[:12]})", f"tasks/{split}")
        if registered and certificate.run.get(f"{split}_is_the_runs") and actual != registered["sha256"]:
            yield Fraud(fraud, "the run's manifest names another file", f"tasks/{split}")
    train_ids = {task.id for task in opened.train}
    strangers = sorted(opened.trained_on.keys() - train_ids)
    if strangers:
        yield Fraud(
            "training tasks changed",
            f"the run was trained on {strangers[0]}, which tasks/train lacks ({len(strangers)} such)",
        )
    counted = {t.task_id for side in opened.episodes.values() for t in side}
    for task_id, why in opened.overlaps.items():
        if task_id in counted or task_id not in certificate.excluded:
            yield Fraud("leaked split", f"{task_id}: {why}")
    for task_id in sorted(certificate.excluded.keys() - opened.overlaps.keys()):
        yield Fraud("tasks dropped", f"{task_id} is excluded, but training does not have it")


def _attempts(opened: Opened) -> Iterator[Fraud]:
    certificate, conditions = opened.certificate, opened.certificate.conditions
    seed = committed_seed(certificate.datasets, certificate.sides, conditions)
    if conditions.seed != seed:
        yield Fraud("seed chosen", f"it is {conditions.seed}, and {seed} follows from the rest")
    counted = (task for task in opened.heldout if task.id not in opened.overlaps)
    planned = attempts(counted, per_task=conditions.samples, seed=seed, label="evaluation")
    expected = {attempt.episode_id: attempt.seed for attempt in planned}
    tasks = dict.fromkeys(name.rpartition("#")[0] for name in expected)
    for side, played in opened.episodes.items():
        ids = {t.id for t in played}
        if len(ids) < len(played):
            yield Fraud("attempts picked", "an episode is there twice", side)
        tried = {t.task_id for t in played}
        missing = [name for name in tasks if name not in tried]
        if missing:
            yield Fraud("tasks dropped", f"{missing[0]} was not played ({len(missing)} such)", side)
        lacking = [name for name in expected if name not in ids and name.rpartition("#")[0] in tried]
        if lacking:
            yield Fraud("attempts picked", f"{lacking[0]} lacks ({len(lacking)} such)", side)
        for t in played:
            if t.id not in expected:
                if t.task_id not in opened.overlaps:
                    yield Fraud("budget unequal", f"{t.id} is an attempt too many", side)
            elif t.seed != expected[t.id] or t.id != f"{t.group_id}#{t.attempt}" or t.group_id != t.task_id:
                yield Fraud("seed chosen", f"{t.id} was played with another seed", side)
            yield from _limits(t, certificate, side)


def _limits(t: Trajectory, certificate: Certificate, side: str) -> Iterator[Fraud]:
    conditions = certificate.conditions
    most = conditions.max_new_tokens
    for turn in t.turns:
        completion, tokens = turn.completion, len(turn.completion.token_ids)
        was_cut = completion.finish_reason is FinishReason.LENGTH
        if tokens > most or (was_cut and tokens != most):
            yield Fraud("budget unequal", f"{t.id}: {tokens} tokens in a turn, and the limit is {most}", side)
        if len(completion.logprobs) != tokens or any(not value <= _EXACT for value in completion.logprobs):
            yield Fraud("tokens edited", f"{t.id}: a token has no logprob, or an impossible one", side)


def _sides(opened: Opened) -> Iterator[Fraud]:
    sides, run = opened.certificate.sides, opened.certificate.run
    baseline, trained = sides[BASELINE], sides[TRAINED]
    for name, side in sides.items():
        if (
            side.chat_template_sha256 != baseline.chat_template_sha256
            or side.tool_format != baseline.tool_format
        ):
            yield Fraud(
                "template changed", "it has another chat template or tool format than the baseline", name
            )
        folder = opened.folder / "weights" / name
        if folder.is_dir() and weights_sha256(folder) != side.weights_sha256:
            yield Fraud("weights changed", FRAUDS["weights changed"], f"weights/{name}")
    if trained.weights_sha256 == baseline.weights_sha256:
        yield Fraud("stale adapter", "both sides have the same weights")
    if _is_same(opened.episodes[BASELINE], opened.episodes[TRAINED]):
        yield Fraud("stale adapter", "both sides sampled the same tokens with the same logprobs")
    began_with = (opened.manifest.get("model") or {}).get("weights_sha256")
    if run.get("baseline_is_the_runs") and began_with not in (None, baseline.weights_sha256):
        yield Fraud("other base", "the run's manifest names other weights")
    if trained.base_sha256 not in (None, baseline.weights_sha256):
        yield Fraud("other base", "the adapter was trained on other weights")
    firsts = [
        {t.id: text_digest(str(t.turns[0].added_token_ids)) for t in side if t.turns}
        for side in opened.episodes.values()
    ]
    for of_side, name in zip(firsts, opened.episodes, strict=True):
        differing = [key for key in of_side if key in firsts[0] and of_side[key] != firsts[0][key]]
        if differing:
            detail = f"{differing[0]} begins with other tokens than on the other side"
            yield Fraud("prompt edited", detail, name)


def _is_same(a: Sequence[Trajectory], b: Sequence[Trajectory]) -> bool:
    def sampled(t: Trajectory) -> Any:
        return t.id, [(u.completion.token_ids, u.completion.logprobs) for u in t.turns]

    is_equal = len(a) == len(b) and all(sampled(t) == sampled(u) for t, u in zip(a, b, strict=True))
    return is_equal and any(t.turns for t in a)


def _tools(opened: Opened, catalog_hash: str) -> Iterator[Fraud]:
    certificate = opened.certificate
    if catalog_hash != certificate.catalog_hash:
        yield Fraud("tools changed", "the cassette has other tools than the certificate says", "cassette")
    of_run = opened.manifest.get("catalog_hash")
    if of_run not in (None, certificate.catalog_hash):
        yield Fraud("tools changed", "the run was trained with other tools")


def _grading(opened: Opened) -> Iterator[Fraud]:
    certificate = opened.certificate
    methods = sorted({task.reward_spec.method for task in opened.heldout})
    if methods != certificate.grader.get("methods"):
        yield Fraud("judge swapped", f"the tasks name {', '.join(methods)}")
    places = {name: REWARD_METHODS[name].place for name in methods}
    if places != certificate.grader.get("places"):
        yield Fraud(
            "judge swapped", "the methods of the certificate are other code than those of these names"
        )
    of_run = opened.manifest.get("reward")
    if of_run is not None and of_run != certificate.reward:
        yield Fraud("reward changed", "the run's manifest names other weights or terms")
    judges = [each["judge"] for each in (certificate.grader, of_run or {}) if each.get("judge")]
    if len({judge["identity"] for judge in judges}) > 1:
        yield Fraud("judge swapped", "the run's manifest names another judge")


def _records(opened: Opened) -> Iterator[Fraud]:
    records, run = opened.records["run"], opened.certificate.run
    steps = [record.get("step") for record in records]
    if steps != list(range(1, len(steps) + 1)) or len(steps) < run.get("checkpoint_step", 0):
        yield Fraud("weight sync unproven", "metrics.jsonl does not have every step of the run")
    every, limit = run.get("canary_every", 0), TOLERANCE.get(run.get("dtype", ""), max(TOLERANCE.values()))
    for record in records:
        proof = record.get("canary_difference")
        if every and record["step"] % every == 0 and proof is None:
            yield Fraud("weight sync unproven", f"step {record['step']} has no proof")
        elif proof is not None and not 0.0 <= proof <= limit:
            yield Fraud(
                "weight sync unproven", f"step {record['step']}: {proof} nats, and {limit} is allowed"
            )


async def _play_again(
    opened: Opened,
    tools: ToolProvider,
    judge: JudgeRules | None,
    renderer: ContextRenderer | None,
    decode: Callable[[Sequence[int]], str] | None,
) -> tuple[dict[str, DiskList[Trajectory]], list[Fraud]]:
    """Every episode as its texts and the tape give it, and how that differs from what is stored."""
    conditions = opened.certificate.conditions
    tasks = ById(opened.heldout)
    again: dict[str, DiskList[Trajectory]] = {}
    frauds: list[Fraud] = []
    for side, stored in {**opened.episodes, ATTACKS: opened.attacks}.items():
        limits = EpisodeLimits(
            max_turns=None if side == ATTACKS else conditions.max_turns,
            max_tool_calls=conditions.max_tool_calls,
            message_limit_chars=conditions.message_limit_chars,
        )
        again[side] = DiskList()
        for t in stored:
            task = tasks.get(t.task_id)
            if task is None:
                frauds.append(Fraud("attempts picked", f"{t.id} is of no held-out task", side))
                continue
            replay = _Replay(opened.certificate, task, t, side, judge)
            if side != ATTACKS:
                replay.renderer, replay.decode = renderer, decode
            again[side].append(await replay.run(tools, limits))
            frauds += replay.frauds
    frauds += _attack_frauds(tasks, again[ATTACKS], excluded=opened.overlaps)
    return again, frauds


class _Replay:
    """One stored episode, carried out again from its texts."""

    def __init__(
        self, certificate: Certificate, task: Task, stored: Trajectory, side: str, judge: JudgeRules | None
    ) -> None:
        self.frauds: list[Fraud] = []
        self.renderer: ContextRenderer | None = None
        self.decode: Callable[[Sequence[int]], str] | None = None
        self._judge = judge
        self._certificate, self._task, self._stored, self._side = certificate, task, stored, side

    def _differs(self, name: str, detail: str) -> None:
        self.frauds.append(Fraud(name, f"{self._stored.id}: {detail}", self._side))

    async def run(self, tools: ToolProvider, limits: EpisodeLimits) -> Trajectory:
        """The stored episode with what it comes to."""
        conditions, stored = self._certificate.conditions, self._stored
        episode = Episode(
            self._task,
            tools,
            limits=limits,
            episode_id=stored.id,
            tool_format="auto" if self._side == ATTACKS else self._certificate.sides[self._side].tool_format,
            discovery=conditions.discovery,
            judge=RecordedJudge(stored.judgement),
        )
        if list(stored.prompt) != prompt_messages(self._task, limits.message_limit_chars) and stored.turns:
            self._differs("prompt edited", "the prompt is not the task's")
        try:
            try:
                start = await episode.start()
                await self._steps(episode, start.messages, start.tool_schemas)
            except EpisodeError as error:
                await episode.finish(StopReason.FAILED, error=str(error))
            was_whole = episode.done
            if not episode.done:
                is_full = stored.stop_reason is StopReason.CONTEXT_OVERFLOW
                await episode.finish(StopReason.CONTEXT_OVERFLOW if is_full else StopReason.FAILED)
            terms = await episode.grade()
            self._judgement(episode.record)
        finally:
            await episode.close()
        again = stored.model_copy(
            update={
                "reward_terms": terms,
                "final_answer": episode.final_answer,
                "stop_reason": episode.stop_reason or StopReason.FAILED,
            }
        )
        self._compare(again, was_whole=was_whole)
        return again

    async def _steps(self, episode: Episode, prompt: list[JsonObject], schemas: Sequence[JsonObject]) -> None:
        added = None if self.renderer is None else self.renderer.prompt_ids(prompt, tuple(schemas))
        for turn in self._stored.turns:
            if episode.done:
                self._differs("ending edited", f"it goes on after it ended ({episode.stop_reason})")
                return
            text = turn.completion.text
            if added is not None and tuple(turn.added_token_ids) != tuple(added):
                self._differs("tokens edited", f"turn {turn.index} was shown other tokens than its messages")
            if self.decode is not None and self.decode(turn.completion.token_ids) != text:
                self._differs("tokens edited", f"turn {turn.index} has another text than its tokens")
            out = await episode.step(text, finish=turn.completion.finish_reason)
            if [_call(c) for c in out.tool_calls] != [_call(c) for c in turn.tool_calls]:
                self._differs("calls edited", f"turn {turn.index} calls something else than its text")
            elif [_result(r) for r in out.tool_results] != [_result(r) for r in turn.tool_results]:
                self._differs("results edited", f"turn {turn.index} was answered something else")
            if out.user_message != turn.user_message:
                self._differs("prompt edited", f"the user said something else after turn {turn.index}")
            if self.renderer is not None:
                last = (*turn.added_token_ids, *turn.completion.token_ids)[-1:]
                added = self.renderer.suffix_ids(out.observations, ended_by=last[0] if last else None)

    def _judgement(self, record: EpisodeRecord) -> None:
        """What the judge said stands there, is of this judge and this episode, and comes to that verdict."""
        said = self._stored.judgement
        judge = self._judge if is_open_to_judge(self._task, record) else None
        if judge is None or said is None:
            is_same = judge is None and said is None
            problem = None if is_same else f"a verdict of the judge {'is there' if said else 'lacks'}"
        else:
            problem = judgement_problem(self._task, record, said, judge)
        if problem is not None:
            self._differs("judge swapped", problem)

    def _compare(self, again: Trajectory, *, was_whole: bool) -> None:
        stored = self._stored
        is_unscored = stored.is_success is None
        if is_unscored and was_whole and again.is_success is not None:
            self._differs("unscored hidden", "it is left out as broken, and can be graded")
            return
        if not is_unscored and (again.final_answer, again.stop_reason) != (
            stored.final_answer,
            stored.stop_reason,
        ):
            self._differs(
                "ending edited",
                f"it ended by {again.stop_reason} and not by {stored.stop_reason}, or with another answer",
            )
        first = {term.name: (term.value, term.weight) for term in stored.reward_terms}
        second = {term.name: (term.value, term.weight) for term in again.reward_terms}
        differing = sorted(
            name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
        )
        if differing and not is_unscored:
            self._differs("verdict edited", f"the reward gives another {', '.join(differing[:4])}")


def _call(call: Any) -> tuple[Any, ...]:
    return call.server, call.tool, json.dumps(call.arguments, sort_keys=True)


def _result(result: ToolResult) -> tuple[Any, ...]:
    return result.server, result.tool, result.content, result.is_error, result.failure


def _attack_frauds(
    tasks: Mapping[str, Task], played: Sequence[Trajectory], *, excluded: Mapping[str, str]
) -> Iterator[Fraud]:
    made = {t.id: [turn.completion.text for turn in t.turns] for t in played}
    gold = {t.task_id: t for t in played if t.id.endswith(f"#{GOLD}")}
    expected: set[str] = set()
    for task_id, task in tasks.items():
        if task_id in excluded:
            continue
        if task_id not in gold:
            yield Fraud("attacks dropped", f"the plan of {task_id} was not played", ATTACKS)
            continue
        expected.add(f"{task_id}#{GOLD}")
        for kind, texts in attack_scripts(task, gold[task_id]).items():
            name = f"{task_id}#{kind}"
            expected.add(name)
            if name not in made:
                yield Fraud("attacks dropped", f"{name} was not made", ATTACKS)
            elif made[name] != spoken(texts, len(made[name])):
                yield Fraud("attacks dropped", f"{name} was another attack", ATTACKS)
    for name in sorted(made.keys() - expected):
        yield Fraud("attacks dropped", f"{name} is no attack on a counted task", ATTACKS)


def _figures(opened: Opened, played: Mapping[str, Sequence[Trajectory]]) -> Iterator[Fraud]:
    sides = {side: each for side, each in played.items() if side != ATTACKS}
    try:
        evidence = Evidence(
            episodes=sides,
            attacks=played[ATTACKS],
            records=opened.records,
            heldout=opened.heldout,
            overlaps=opened.overlaps,
        )
        derived = figures(evidence)
    except RunError as error:
        yield Fraud("figure edited", str(error))
        return
    stated = opened.certificate.figures
    for path, said, real in _differences(stated, json.loads(json.dumps(derived))):
        name = "control cheaper" if path.startswith("controls.") and "cost" in path else "figure edited"
        yield Fraud(name, f"{path} is {said}, and {real} follows from the evidence")


def _differences(stated: Any, derived: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(stated, dict) and isinstance(derived, dict):
        for key in sorted(stated.keys() | derived.keys()):
            yield from _differences(stated.get(key), derived.get(key), f"{path}.{key}" if path else key)
    elif isinstance(stated, float | int) and isinstance(derived, float | int):
        if not abs(stated - derived) <= _EXACT * max(1.0, abs(derived)):
            yield path, stated, derived
    elif stated != derived:
        yield path, stated, derived
