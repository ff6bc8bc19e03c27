"""What was asked, answered and found out, on disk before anything is made of it: a kill loses nothing.

One JSON object a line, appended and synced. The first line says what the run asks for; `sent` precedes every
request, and `answered`, `failed` or `gave_up` follow; `executed` is what came of a plan on the real tools.
A key names a question: run, sample, stage and attempt. A process that died leaves requests that were sent and
have no outcome; they count as spent at their worst case, and are asked again.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.llm.budget import ApiBudget
from mcpagent.llm.contract import ChatFailed, ChatReply, FailureReason, Usage
from mcpagent.llm.endpoint import read_chat
from mcpagent.storage.datasets import complete_lines, record_writer

_FORMAT = 1


class JournalInUse(UserError):
    """Another process writes to the journal."""


class Journal:
    """The journal at `path` of the run that `run` describes. `retry_failed` forgets
    which questions were given up. Raises UserError if the file is in use, broken, or of another run."""

    def __init__(self, path: Path, *, run: JsonObject, retry_failed: bool = False) -> None:
        self._path = path
        self._run = {"format": _FORMAT, **run}
        self._answers: dict[str, tuple[int, int]] = {}  # key -> offset and length of its line
        self._gave_up: dict[str, JsonObject] = {}
        self._executed: dict[str, JsonObject] = {}
        self._open: dict[str, list[Usage]] = {}  # sent, without an outcome so far
        self._spent: list[tuple[Usage, Usage | None]] = []  # bound and usage of what earlier processes sent
        # Of every request without an answer, also of earlier processes: how many, what was said first.
        self._failures: dict[str, tuple[int, str]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            self._lock()
            self._load(retry_failed=retry_failed)
        except BaseException:
            self._file.close()
            raise

    @property
    def prefix(self) -> str:
        """Return the beginning of every key: two runs that ask for other things share no key."""
        return sha256(json.dumps(self._run, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def answered_count(self) -> int:
        """Return how many requests have an answer."""
        return len(self._answers)

    @property
    def failures(self) -> JsonObject:
        """Return the requests without an answer by reason, as `gen-data --llm --json` shows them."""
        told = sorted(self._failures.items())
        return {
            "total": sum(count for count, _ in self._failures.values()),
            "reasons": {reason: count for reason, (count, _) in told},
            "examples": {reason: text for reason, (_, text) in told},
        }

    def charge(self, budget: ApiBudget) -> None:
        """Count in what earlier processes spent."""
        for bound, usage in self._spent:
            budget.remember(bound, usage)

    def answer(self, key: str) -> ChatReply | None:
        """Return the recorded answer. Raises ChatFailed if the question was given up."""
        if key in self._answers:
            offset, length = self._answers[key]
            return read_chat(json.loads(os.pread(self._file.fileno(), length, offset))["raw"])
        if key in self._gave_up:
            line = self._gave_up[key]
            raise ChatFailed(FailureReason(line["reason"]), line["text"])
        return None

    def executed(self, key: str) -> JsonObject | None:
        """Return what executing the plan under `key` gave, if that is known."""
        return self._executed.get(key)

    def sent(self, key: str, bound: Usage) -> None:
        """Note, before a request leaves, the tokens that it may cost at most."""
        self._append({"kind": "sent", "key": key, "bound": [bound.input_tokens, bound.output_tokens]})

    def answered(self, key: str, reply: ChatReply) -> None:
        """Keep an answer."""
        self._answers[key] = self._append({"kind": "answered", "key": key, "raw": reply.raw})

    def failed(self, key: str, failure: ChatFailed) -> None:
        """Keep why one attempt at a request failed, and whether it may have been billed."""
        line = {"reason": failure.reason.value, "text": failure.text, "billed": failure.may_be_billed}
        self._append({"kind": "failed", "key": key, **line})
        self._count(failure.reason.value, failure.text)

    def gave_up(self, key: str, failure: ChatFailed) -> None:
        """Keep that a request is not tried again."""
        line = {"kind": "gave_up", "key": key, "reason": failure.reason.value, "text": failure.text}
        self._gave_up[key] = line
        self._append(line)

    def keep_executed(self, key: str, outcome: JsonObject) -> None:
        """Keep what executing a plan gave."""
        self._executed[key] = outcome
        self._append({"kind": "executed", "key": key, "outcome": outcome})

    def close(self) -> None:
        """Close the file, which gives up its lock."""
        self._file.close()

    def _count(self, reason: str, text: str) -> None:
        count, first = self._failures.get(reason, (0, text))
        self._failures[reason] = count + 1, first

    def _append(self, line: JsonObject) -> tuple[int, int]:
        offset = self._file.tell()
        record_writer(self._file, flush=True).write(line)
        os.fsync(self._file.fileno())
        return offset, self._file.tell() - offset

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(
                "another process is writing this journal",
                where=str(self._path),
                remedy="wait for it, or name another folder (--out, output_dir)",
            ) from None

    def _load(self, *, retry_failed: bool) -> None:
        self._file.seek(0)
        offset = 0
        # A line that a kill cut off is left out: its process made nothing of it.
        for number, raw in enumerate(complete_lines(self._file), 1):
            try:
                self._take(json.loads(raw), offset, len(raw), is_first=number == 1)
            except (ValueError, LookupError, TypeError) as error:
                raise UserError(
                    f"is not a line of a journal: {type(error).__name__}: {error}",
                    where=f"{self._path}:{number}",
                    remedy="name another folder (--out, output_dir)",
                ) from None
            offset += len(raw)
        self._file.truncate(offset)
        self._file.seek(offset)
        if offset == 0:
            self._append({"kind": "run", "run": self._run})
        self._spent += [(bound, None) for bounds in self._open.values() for bound in bounds]
        if retry_failed:
            self._gave_up.clear()

    def _take(self, line: JsonObject, offset: int, length: int, *, is_first: bool) -> None:
        if is_first:
            self._check_run(line["run"])
            return
        key, kind = line["key"], line["kind"]
        match kind:
            case "sent":
                self._open.setdefault(key, []).append(Usage(*line["bound"]))
                self._gave_up.pop(key, None)  # it was asked again
            case "answered":
                self._answers[key] = (offset, length)
                self._spent.append((self._open[key].pop(), read_chat(line["raw"]).usage))
            case "failed":
                self._spent.append((self._open[key].pop(), None if line["billed"] else Usage()))
                self._count(line["reason"], line["text"])
            case "gave_up":
                self._gave_up[key] = line
            case "executed":
                self._executed[key] = line["outcome"]
            case _:
                raise ValueError(f"unknown kind {kind!r}")

    def _check_run(self, recorded: dict[str, Any]) -> None:
        names = sorted(recorded.keys() | self._run.keys())
        changed = [name for name in names if recorded.get(name) != self._run.get(name)]
        if changed:
            name = changed[0]
            raise UserError(
                f"the journal is of a run with other settings: {', '.join(changed)} "
                f"({name} was {recorded.get(name)!r:.80}, now {self._run.get(name)!r:.80})",
                where=str(self._path),
                remedy="resume with the settings of before, or name another folder (--out, output_dir)",
            )


@contextmanager
def open_journal(folder: Path, *, name: str, run: JsonObject) -> Iterator[tuple[Journal, Path]]:
    """Yield the first journal of this name in `folder` that no other process writes to. What was given up
    is asked again. Raises UserError."""
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", name)
    for number in itertools.count(1):
        path = folder / (f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl")
        try:
            journal = Journal(path, run=run, retry_failed=True)
        except JournalInUse:
            continue
        except OSError as error:
            raise UserError(
                f"the journal cannot be written: {error.strerror}",
                where=str(path),
                remedy="name a folder for it: --set output_dir=DIR",
            ) from None
        with closing(journal):
            yield journal, path
        return
