"""A model as a judge of what no rule can check: its question, its votes, and what they come to.

What is judged was written by others, the policy under training and the servers among them. It is quoted as
one JSON object between marks that follow from the question, and a vote is a code that follows from the mark:
text inside an episode can know neither. A verdict is held against a control: the same episode under a rubric
whose outcome is known to be the opposite; if that gets the same verdict, the rubric does not decide.
Whatever cannot be read, or does not hold, leaves the term unscored: it is never 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

from mcpagent.config.environment import resource_path
from mcpagent.core.hidden_text import without_hidden, without_marks
from mcpagent.core.records import JsonObject, Record
from mcpagent.core.tasks import GroundTruth, Task
from mcpagent.core.trajectory import Judgement, JudgeVote, RewardTerm
from mcpagent.core.values import is_json_object
from mcpagent.errors import UserError
from mcpagent.llm.budget import BudgetSpent
from mcpagent.llm.contract import ChatClient, ChatFailed, ChatReply, ChatRequest, Finish
from mcpagent.reward.record import EpisodeRecord, user_messages
from mcpagent.reward.rule import INVALID_COST, MAX_PENALTY, WEIGHTS, grade_by_rule
from mcpagent.storage.yaml_file import read_yaml, validate_yaml

JUDGE_TERM = "judge"
JUDGE_WEIGHT = 0.2  # next to the rule's terms
JUDGED_METHODS = ("judge", "rule+judge")
PROMPTS_FILE = "templates/prompts/judge.yaml"
_SHOWN_CHARS = 4000  # of one result
# Asked of an answer that the rule leaves open; a file of prompts may word it otherwise (`answer`).
ANSWER_RUBRIC = (
    "The final answer tells the user that the answer to the request is {{value}}, in whatever words or "
    "notation. It is not fulfilled if the final answer denies, doubts, mocks, negates or qualifies this "
    "value, offers others to choose from, or says it of something that was not asked about."
)
_BLANK = re.compile(r"\{\{(\w+)\}\}")


class JudgeTexts(Record):
    """The texts of a prompt file."""

    phrasings: tuple[str, str]
    fulfilled: str
    failed: str
    user: str
    rubric: str
    answer: str = ANSWER_RUBRIC
    certain: str
    impossible: str
    padding: str
    injections: tuple[str, ...]


_BLANKS = {
    "phrasings": {"mark", "rubric", "codes"},
    "fulfilled": {"code"},
    "failed": {"code"},
    "user": {"mark", "data"},
    "answer": {"value"},
    "certain": {"word"},
    "impossible": {"word"},
}


@dataclass(frozen=True)
class JudgePrompts:
    """The texts of a file, and the hash of the file."""

    texts: JudgeTexts
    sha256: str

    @classmethod
    def load(cls, path: Path | None = None) -> JudgePrompts:
        """Return the prompts of `path`, or those of mcpagent. Raises UserError."""
        path = path or resource_path(PROMPTS_FILE)
        remedy = f"begin with a copy of {resource_path(PROMPTS_FILE)}"
        texts = validate_yaml(JudgeTexts, read_yaml(path, remedy=remedy), remedy=remedy)
        for name, blanks in _BLANKS.items():
            values = getattr(texts, name)
            for text in (values,) if isinstance(values, str) else values:
                if (filled := set(_BLANK.findall(text))) != blanks:
                    odd = sorted(filled ^ blanks)[0]
                    what = "is not filled by anything" if odd in filled else "is missing"
                    raise UserError(f"{{{{{odd}}}}} in {name} {what}", where=str(path))
        return cls(texts, hashlib.sha256(path.read_bytes()).hexdigest())


@dataclass(frozen=True, kw_only=True)
class JudgeRules:
    """All that decides what a judge is asked and how its votes count. With `controls`, a verdict must be the
    opposite under a rubric that demands the opposite."""

    model: str
    base_url: str | None
    votes: int
    max_output_tokens: int = 1024  # of one vote
    controls: bool
    prompts: JudgePrompts

    @property
    def identity(self) -> str:
        """Equal for two judges that are asked the same and counted alike."""
        facts = {**self._facts, "prompts_sha256": self.prompts.sha256}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def as_json(self) -> JsonObject:
        """Return what a manifest, a result and a certificate say of the judge."""
        return {
            **self._facts,
            "temperature": 0.0,
            "prompts_sha256": self.prompts.sha256,
            "identity": self.identity,
        }

    @property
    def _facts(self) -> JsonObject:
        return {
            "model": self.model,
            "base_url": self.base_url,
            "votes": self.votes,
            "max_output_tokens": self.max_output_tokens,
            "controls": self.controls,
        }


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Another way to put the same question, by which a verdict should not change. `injection` is the number
    of a text that follows the last result."""

    phrasing: int = 0
    is_reversed: bool = False
    is_padded: bool = False
    injection: int | None = None


PLAIN = Variant()


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked: `messages` for a vote of an even number; for an odd one the codes change places."""

    system: tuple[str, str]
    user: str
    fulfilled: str
    failed: str

    def messages(self, vote: int) -> tuple[JsonObject, ...]:
        """Return the messages of a vote."""
        return (
            {"role": "system", "content": self.system[vote % 2]},
            {"role": "user", "content": self.user},
        )

    @property
    def sha256(self) -> str:
        """Of all that is asked."""
        return hashlib.sha256(json.dumps([*self.system, self.user]).encode()).hexdigest()

    def read(self, answer: str) -> bool | None:
        """Return the verdict of an answer; None if it is not one object with a reason and a code."""
        text = answer.strip()
        if text.startswith("```"):
            text = text.partition("\n")[2].rpartition("```")[0]
        try:
            value = json.loads(text, object_pairs_hook=_without_duplicates)
        except (ValueError, RecursionError):
            return None
        if not is_json_object(value) or not {"code"} <= value.keys() <= {"code", "reason"}:
            return None
        code = value["code"]
        return None if not isinstance(code, str) else {self.fulfilled: True, self.failed: False}.get(code)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def question(
    task: Task,
    record: EpisodeRecord,
    rules: JudgeRules,
    *,
    variant: Variant = PLAIN,
    opposite_of: bool | None = None,
) -> Question:
    """Return the question about an episode; with `opposite_of` a verdict, under its control's rubric."""
    texts = rules.prompts.texts
    said = record.final_answer or ""
    if variant.is_padded:
        said = f"{said}\n\n{texts.padding}"
    calls = [
        {
            "tool": f"{made.call.server}.{made.call.tool}",
            "arguments": made.call.arguments,
            "result": _shown(made.result.content),
        }
        for made in record.calls
    ]
    if variant.injection is not None and calls:
        calls[-1]["result"] = f"{calls[-1]['result']}\n{texts.injections[variant.injection]}"
    parts = {"request": user_messages(task), "calls": calls, "final_answer": said}
    ordered = dict(reversed(parts.items())) if variant.is_reversed else parts
    data = without_marks(without_hidden(json.dumps(ordered, ensure_ascii=False, indent=1))[0])
    rubric = rubric_text(task) or texts.rubric
    if opposite_of is not None:
        word = _derived("word", data)  # no text holds its own hash, so that it is certain to be missing
        rubric = _fill(texts.impossible if opposite_of else texts.certain, word=word)
    rubric = rubric.strip()
    # It depends on all that is quoted, so that nothing quoted can hold it.
    mark = _derived(rules.identity, task.id, rubric, data)
    fulfilled, failed = _derived(mark, "fulfilled")[:10], _derived(mark, "failed")[:10]
    codes = [_fill(texts.fulfilled, code=fulfilled), _fill(texts.failed, code=failed)]
    if variant.is_reversed:
        codes.reverse()
    phrasing = texts.phrasings[variant.phrasing]
    first, second = (
        _fill(phrasing, mark=mark, rubric=rubric, codes="\n".join(lines)) for lines in (codes, codes[::-1])
    )
    return Question(
        system=(first, second),
        user=_fill(texts.user, mark=mark, data=data),
        fulfilled=fulfilled,
        failed=failed,
    )


def _derived(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "replace")).hexdigest()[:24]


def rubric_text(task: Task) -> str:
    """Return the task's own rubric: its text, or its criteria as JSON. Empty if it has none."""
    rubric = task.truth.judge_rubric
    if isinstance(rubric, dict):
        return json.dumps(rubric, ensure_ascii=False, indent=1) if rubric else ""
    return (rubric or "").strip()


def _fill(text: str, **values: str) -> str:
    return _BLANK.sub(lambda blank: values[blank[1]], text)


def _shown(text: str) -> str:
    cut = len(text) - _SHOWN_CHARS
    return text if cut <= 0 else f"{text[:_SHOWN_CHARS]} [... {cut} characters more]"


def majority(votes: Sequence[bool | None]) -> bool | None:
    """Return what more than half of all votes say, those that could not be read among them; None if they do
    not agree."""
    return next((side for side in (True, False) if 2 * votes.count(side) > len(votes)), None)


def has_checkable_truth(truth: GroundTruth) -> bool:
    """Return whether the rule can tell a success of the task."""
    checks = (truth.tool_sequence, truth.final_answer, truth.state, truth.success.must_call, truth.abstain)
    return any(checks)


def is_left_open(task: Task, record: EpisodeRecord) -> bool:
    """Return whether nothing but words around the right value keeps the rule from a success, and none of them
    denies it, doubts it or is of another value that was seen: what an answer says then is for a judge."""
    return False


def is_open_to_judge(task: Task, record: EpisodeRecord) -> bool:
    """Return whether a judge has a say: the task names one, and the rule finds no failure, or leaves open
    what the answer says."""
    if task.reward_spec.method not in JUDGED_METHODS or record.is_unscorable:
        return False
    if not has_checkable_truth(task.truth) or is_left_open(task, record):
        return True
    return _value(grade_by_rule(task, record), "success") == 1.0


def verdict_of(votes: Sequence[JudgeVote], control: JudgeVote | None, rules: JudgeRules) -> bool | None:
    """Return what the votes say; None if they or the control do not agree."""
    said = majority([vote.verdict for vote in votes])
    if said is None or not rules.controls:
        return said
    return said if control is not None and control.verdict is not None and control.verdict != said else None


class Judge(Protocol):
    """Judges an ended episode."""

    async def judge(self, task: Task, record: EpisodeRecord) -> Judgement | None:
        """Return None if the judge has no say in the episode. Errors are in the result, not raised."""
        ...


@dataclass
class ModelJudge:
    """A `Judge` behind an API. A judgement that takes longer than `timeout_s` in all is given up; `on_note`
    is told of each kind of failure once."""

    client: ChatClient
    rules: JudgeRules
    timeout_s: float
    on_note: Callable[[str], None] = lambda _: None
    _told: set[str] = field(default_factory=set[str])
    _asking: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary[str, asyncio.Lock]
    )

    async def judge(self, task: Task, record: EpisodeRecord) -> Judgement | None:
        """Return the verdict on an episode that `is_open_to_judge`."""
        return await self.ask(task, record) if is_open_to_judge(task, record) else None

    async def ask(self, task: Task, record: EpisodeRecord, *, variant: Variant = PLAIN) -> Judgement:
        """Return the verdict on any episode. A `variant` other than PLAIN gets one vote and no control."""
        asked = question(task, record, self.rules, variant=variant)
        count = self.rules.votes if variant == PLAIN else 1
        judgement = Judgement(
            model=self.rules.model, identity=self.rules.identity, question_sha256=asked.sha256
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                votes = tuple(await asyncio.gather(*(self._one(asked, number) for number in range(count))))
                said, control = majority([vote.verdict for vote in votes]), None
                if said is not None and variant == PLAIN and self.rules.controls:
                    control = await self._one(question(task, record, self.rules, opposite_of=said), 0)
        except TimeoutError:
            error = f"no verdict within {self.timeout_s:g} s"
            self._tell(error)
            return judgement.model_copy(update={"error": error})
        verdict = said if variant != PLAIN else verdict_of(votes, control, self.rules)
        return judgement.model_copy(update={"votes": votes, "control": control, "verdict": verdict})

    async def _one(self, asked: Question, number: int) -> JudgeVote:
        messages = asked.messages(number)
        request = ChatRequest(
            messages=messages,
            max_output_tokens=self.rules.max_output_tokens,
            schema=_schema(asked),
            schema_name="verdict",
            temperature=0.0,
            seed=number,
        )
        key = hashlib.sha256(json.dumps([messages, number]).encode("utf-8", "replace")).hexdigest()
        try:
            # Attempts at one task often say the same: the second waits for the answer that the first is kept.
            async with self._asking.setdefault(key, asyncio.Lock()):
                reply = await self.client.ask(request, key=key)
        except BudgetSpent as spent:
            fault = f"its budget is spent (api.{spent.cap})"
        except (ChatFailed, UserError) as failure:
            fault = f"no answer: {failure}"[:300]
        else:
            return _vote_of(asked, reply)
        self._tell(fault)
        return JudgeVote(fault=fault)

    def _tell(self, problem: str) -> None:
        kind = re.sub(r"\d+", "", problem)[:60]
        if kind not in self._told:
            self._told.add(kind)
            self.on_note(f"the judge: {problem}; its term stays unscored in such episodes")


def _schema(asked: Question) -> JsonObject:
    codes = sorted((asked.fulfilled, asked.failed))
    return {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "code": {"type": "string", "enum": codes}},
        "required": ["reason", "code"],
        "additionalProperties": False,
    }


def _vote_of(asked: Question, reply: ChatReply) -> JudgeVote:
    if reply.finish is not Finish.STOP:
        return JudgeVote(fault=f"the answer ended by {reply.finish}")
    verdict = asked.read(reply.text)
    fault = None if verdict is not None else "the answer is not one object with one of the two codes"
    return JudgeVote(answer=reply.text, verdict=verdict, fault=fault)


def _value(terms: Sequence[RewardTerm], name: str) -> float | None:
    return next((term.value for term in terms if term.name == name), None)


def _judged(record: EpisodeRecord) -> float | None:
    judgement = record.judgement
    return None if judgement is None or judgement.verdict is None else float(judgement.verdict)


def grade_by_rule_and_judge(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """Return the terms of the rule, and `judge`: 1 for a success that the judge approves. An unscored one has
    no weight, so that the reward is the rule's. A task that the rule cannot check is left to the judge, and
    so is an answer that the rule leaves open: it is a success if the judge approves."""
    if not has_checkable_truth(task.truth):
        return grade_by_judge(task, record)
    is_approved = _judged(record) == 1.0 and is_left_open(task, record)
    terms = grade_by_rule(task, record, is_lenient=is_approved)
    success = _value(terms, "success")
    value = _judged(record) if success else success
    weight = 0.0 if value is None and success is not None else JUDGE_WEIGHT
    return (*terms, RewardTerm(name=JUDGE_TERM, value=value, weight=weight))


def grade_by_judge(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """Return the rule's terms if the judge decides success, and the rule may only deny it. Without a
    verdict the episode is unscored. Where there is no plan, calls beyond it are not counted."""
    terms = grade_by_rule(task, record)
    if record.is_unscorable:
        return (*terms, RewardTerm(name=JUDGE_TERM, value=None))
    gate = _value(terms, "success") if has_checkable_truth(task.truth) else 1.0
    verdict = _judged(record) if gate else None
    decided: dict[str, float | None] = {"success": verdict, "partial": verdict} if gate else {"success": gate}
    if not task.truth.tool_sequence:
        decided["excess"] = None
        decided["penalty"] = min(MAX_PENALTY, INVALID_COST * (_value(terms, "invalid_rate") or 0.0))
    changed = tuple(
        term.model_copy(update={"value": decided[term.name], "weight": WEIGHTS.get(term.name, 0.0)})
        if term.name in decided
        else term
        for term in terms
    )
    return (*changed, RewardTerm(name=JUDGE_TERM, value=0.0 if gate == 0.0 else verdict))


def is_unjudged(terms: Sequence[RewardTerm]) -> bool:
    """Return whether they are of a success to which the judge that should have judged it gave no verdict."""
    judged = next((term for term in terms if term.name == JUDGE_TERM), None)
    return judged is not None and judged.value is None and _value(terms, "success") == 1.0


def without_judge(terms: Sequence[RewardTerm]) -> tuple[RewardTerm, ...]:
    """`terms` in which the judge's is a mere measurement."""
    return tuple(t.model_copy(update={"weight": 0.0}) if t.name == JUDGE_TERM else t for t in terms)
