"""From chats to tasks: each played on the live servers, settled, proven, and placed in a split."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from mcpagent.core.answer_line import without_form
from mcpagent.core.placeholders import reference_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import RewardSpec, Task
from mcpagent.storage.datasets import DiskList, text_digest
from mcpagent.synth.chats.answer import AnswerWriter, ShownAnswer
from mcpagent.synth.chats.play import MadeCall, Player
from mcpagent.synth.chats.read import Chat, read_chats
from mcpagent.synth.datasets.split import common_texts, group_keys
from mcpagent.synth.tasks.inspect import groups_by
from mcpagent.synth.tasks.prove import grounded
from mcpagent.synth.tasks.record import ToolSelection, build_task, last_tool, task_id
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import RejectCode, RejectedTask, Rejection
from mcpagent.synth.templates.pools import SPLITS, SplitShares
from mcpagent.tools.contract import ToolProvider

_AT_ONCE = 16  # chats
_SPARE_TURNS = 3  # room for an exploratory call, a mistake and its repair
_SHARES = SplitShares(heldout=0.2, validation=0.1)


@dataclass
class ChatConversion:
    """The outcome of each row: the `tasks` in the order of the file, and for each other row its line, a code
    and the reason."""

    rows: int = 0
    tasks: DiskList[Task] = field(default_factory=DiskList[Task])
    left_out: list[JsonObject] = field(default_factory=list)

    def add(self, line: int, outcome: Task | Rejection) -> None:
        """Take what became of the row that begins on `line`."""
        self.rows += 1
        if isinstance(outcome, Task):
            self.tasks.append(outcome)
        else:
            self.left_out.append({"line": line, "code": outcome.code.value, "why": outcome.detail})

    def rejects(self) -> dict[str, int]:
        """Return how many rows were left out, by code."""
        return dict(Counter(row["code"] for row in self.left_out))

    def graded_by(self) -> dict[str, int]:
        """Return how many tasks are graded by what: the first that a task has."""
        return dict(Counter(map(_graded_by, self.tasks)))


def _graded_by(task: Task) -> str:
    if task.reward_spec.method != "rule":
        return "a judge"
    return "the answer" if task.truth.final_answer else "the state" if task.truth.state else "the calls"


async def convert_chats(
    path: Path,
    pool: ToolProvider,
    *,
    may_be_changed: Collection[str],
    writer: AnswerWriter | None = None,
    on_progress: Callable[[int, int], None] = lambda rows, kept: None,
) -> ChatConversion:
    """Make a task of each chat whose calls run on the servers of `pool`; `may_be_changed` are those to
    which a call of the log may write. `writer` says what the answers are; None grades chats by their calls,
    and by what those changed. `on_progress` gets new rows and all tasks. Raises UserError for a file that
    cannot be read."""
    conversion = ChatConversion()
    rows = _without_copies(DiskList(read_chats(path)))
    offer = ToolSelection(catalog=pool.tools)
    maker = _Maker(offer, CallCache(pool), may_be_changed, writer)
    for start in range(0, len(rows), _AT_ONCE):
        batch = rows[start : start + _AT_ONCE]
        outcomes = await asyncio.gather(*(maker.made(line, chat) for line, chat in batch))
        for (line, _), outcome in zip(batch, outcomes, strict=True):
            conversion.add(line, outcome)
        on_progress(len(batch), len(conversion.tasks))
    return conversion


Rows = DiskList[tuple[int, Chat | Rejection]]


def _without_copies(rows: Rows) -> Rows:
    """Return the rows with a rejection for each chat that is in the file twice, or the beginning of a longer
    one: logs have a row for each request."""
    digests: list[list[int]] = [_digests(chat) if isinstance(chat, Chat) else [] for _, chat in rows]
    longer = {d: line for (line, _), of in zip(rows, digests, strict=True) for d in of[:-1]}
    first: dict[int, int] = {}
    kept: Rows = DiskList()
    for (line, chat), of in zip(rows, digests, strict=True):
        whole = of[-1] if of else None
        if whole in longer:
            chat = Rejection(RejectCode.DUPLICATE, f"is the beginning of the chat of line {longer[whole]}")
        elif whole is not None and (earlier := first.setdefault(whole, line)) != line:
            chat = Rejection(RejectCode.DUPLICATE, f"is the chat of line {earlier} again")
        kept.append((line, chat))
    return kept


def _digests(chat: Chat) -> list[int]:
    """Return what stands for the chat up to each of its messages and calls."""
    events = (
        json.dumps([turn, said], ensure_ascii=False, sort_keys=True)
        for turn, text in enumerate(chat.users)
        for said in (text, *([c.name, c.arguments] for c in chat.calls if c.user_turn == turn))
    )
    return list(accumulate(map(text_digest, events), lambda before, event: text_digest(f"{before} {event}")))


class _Maker:
    """Makes the task of a chat."""

    def __init__(
        self,
        offer: ToolSelection,
        cache: CallCache,
        may_be_changed: Collection[str],
        writer: AnswerWriter | None,
    ) -> None:
        self._offer, self._cache, self._writer = offer, cache, writer
        self._player = Player(cache, offer.catalog, may_be_changed)

    async def made(self, line: int, chat: Chat | Rejection) -> Task | Rejection:
        """Return the settled and proven task, or why there is none."""
        if isinstance(chat, Rejection):
            return chat
        try:
            calls, state = await self._player.play(chat.calls)
        except RejectedTask as rejected:
            return rejected.rejection
        outcome = await grounded(self._draft(line, chat, calls, state), self._cache)
        if isinstance(outcome, Rejection) and state:
            state = {}
            outcome = await grounded(self._draft(line, chat, calls, state), self._cache)
        if isinstance(outcome, Rejection) or self._writer is None:
            return outcome if isinstance(outcome, Rejection) else outcome[0]
        task = outcome[0]
        shown = [(f"{c.spec.dotted}({json.dumps(c.logged.arguments)})", c.result.content) for c in calls]
        key = f"{task.id}:{text_digest(json.dumps(shown)):x}"
        answer = await self._writer.answer(chat.users, shown, chat.said, key=key)
        if answer is not None:
            outcome = await grounded(self._draft(line, chat, calls, state, answer), self._cache)
            if not isinstance(outcome, Rejection):
                return outcome[0]
        if task.truth.reference_answer is None:  # a judge would have nothing to hold an answer against
            return task
        return task.model_copy(
            update={"reward_spec": RewardSpec(method="rule+judge", ground_truth=task.truth)}
        )

    def _draft(
        self,
        line: int,
        chat: Chat,
        calls: Sequence[MadeCall],
        state: JsonObject,
        answer: ShownAnswer | None = None,
    ) -> Task:
        """Return the record that demands the calls; with a `state` or an `answer` those that only look
        something up may be left out. The last message of the log is kept unless it tells of other results
        than today's."""
        together = Counter(call.logged.message for call in calls)
        is_free = bool(state or answer)
        plan: list[JsonObject] = []
        for number, call in enumerate(calls, start=1):
            step: JsonObject = {"step": number, "server": call.spec.server, "tool": call.spec.name}
            plan.append(step | {"params": call.logged.arguments, "user_turn": call.logged.user_turn})
            if together[call.logged.message] > 1:
                plan[-1]["parallel_group"] = call.logged.message
            is_shown = answer is not None and number in answer.shown_by
            if is_free and call.spec.annotations.read_only and not is_shown:
                plan[-1]["optional"] = True
        truth: JsonObject = {
            "task_id": task_id("chat", json.dumps([chat.users, plan], sort_keys=True)),
            "complexity": "simple" if len(plan) == 1 else "moderate" if len(plan) <= 3 else "complex",
            "max_turns": len(plan) + len(chat.users) + _SPARE_TURNS,
            "success": {} if is_free else last_tool(plan),
            "tool_sequence": plan,
            "user_turns": list(chat.users[1:]),
            **({"state": state} if state else {}),
            **({"answer_line": False} if answer is None else answer.truth),
        }
        said = chat.said or ""
        if said and not reference_texts(said) and all(call.still_shows(said) for call in calls):
            truth["reference_answer"] = said
        return build_task(
            self._offer,
            self._offer.catalog,
            truth,
            chat.users[0],
            introduction=chat.system,
            data_source="chats",
            generator="chats",
            line=line,
            catalog_hash=self._offer.catalog_hash,
        )


def placed(tasks: Sequence[Task]) -> Iterator[tuple[str, Task]]:
    """Yield each task with its split: what one conversation or one thing is about stays together."""
    common = common_texts(tasks)
    keys = (
        [*group_keys(task, "entity", common), text_digest(without_form(task.prompt[-1].content))]
        for task in tasks
    )
    group_of = groups_by(keys)
    split_of = _SHARES.assign(dict.fromkeys(group_of), seed=0, least=dict.fromkeys(SPLITS, 1))
    for group, task in zip(group_of, tasks, strict=True):
        split = split_of[group]
        yield split, task.model_copy(update={"extra_info": {**task.extra_info, "split": split}})
