"""`mcpagent env serve`: episodes of a dataset over HTTP, in the Open Reward Standard.

The protocol is that of openreward 0.1 (its `environments.server` and `api.environments.client`). A client
takes a session id, creates an episode in it from a split and an index, reads prompt and tools, and calls
tools until a result says that it is finished, and has the reward. Results are server-sent events, so that a
long call keeps its connection; one whose connection broke is taken up again by its `task_id`.

What the protocol leaves open: a message without a call is given to the tool `terminal_tool`, which the model
does not see, and ends the episode. An episode that cannot be scored ends with `reward: null` and
`metadata.unscored: true`. A session that is idle for `idle_s` is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pydantic
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcpagent.bridges.host import Host, HostedEpisode
from mcpagent.core.records import JsonObject, describe
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.episode import StepOutput
from mcpagent.errors import UserError

ENVIRONMENT = "mcpagent"
_PING_S = 10.0  # between two signs of life of a call that is not over
_START_WAIT_S = 25.0  # for servers that are starting; then the client is told to ask again
_AT_ONCE_S = 0.5  # a call that is over by then is answered in one piece
_CHUNK = 4096  # characters of a result in one event
_SPLIT_KINDS = {"train": "train", "validation": "validation"}  # all others are tests


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """The limits of what clients may take. Times are seconds, sizes bytes."""

    sessions: int = 1100
    idle_s: float = 900.0
    body: int = 1 << 20
    token: str | None = None  # that requests must bear; None: the server is on the loopback only


class _Body(pydantic.BaseModel, extra="forbid", strict=True):
    """The body of a request, read strictly: `true` is not the index 1."""


_B = TypeVar("_B", bound=_Body)


class _SplitName(_Body):
    split: str


class _TaskIndex(_SplitName):
    index: int


class _TaskRange(_SplitName):
    start: int | None = None
    stop: int | None = None


class _TaskSpec(_TaskIndex, extra="ignore"):
    """The entry that `_spec` lists for a task, as a client gives it back."""

    task_id: str | None = None


class _Create(_Body):
    env_name: str | None = None
    split: str | None = None
    index: int | None = None
    task_spec: _TaskSpec | None = None
    toolset_name: Literal[None] = None


class _Call(_Body):
    name: str
    input: JsonObject
    task_id: str | None = None


@dataclass(eq=False)
class _Session:
    """The state behind one session id. `calls` are its calls by task id, finished ones too: a client whose
    connection broke asks for them again."""

    used_at: float
    episode: HostedEpisode | None = None
    started: asyncio.Task[None] | None = None
    calls: dict[str, asyncio.Task[JsonObject]] = field(default_factory=dict)
    trajectory: Trajectory | None = None


class EpisodeServer:
    """The sessions of one server process. `app` is the ASGI application; it runs on the loop of the host's
    tools."""

    def __init__(
        self,
        host: Host,
        limits: ServeLimits | None = None,
        *,
        on_end: Callable[[Trajectory], None] = lambda _: None,
    ) -> None:
        """`on_end` gets the graded record of each episode that ended by itself."""
        self._host, self._limits, self._on_end = host, limits or ServeLimits(), on_end
        self._sessions: dict[str, _Session] = {}
        names = {spec.name for spec in host.tools.pool.tools.values()} | set(host.tools.pool.tools)
        self._answer = next(n for n in ("answer", "final_answer", "submit_final_answer") if n not in names)
        # The protocol ends an episode at the first message without a call.
        self._places = {
            name: [i for i, task in enumerate(tasks) if not task.truth.user_turns]
            for name, tasks in host.splits.items()
        }
        of_environment = {  # asked for with and without the environment's name before it
            "splits": self._splits,
            "tools": self._tools,
            "task_tools": self._task_tools,
            "prompt": self._prompt,
            "messages": self._messages,
            "tasks": self._tasks,
            "num_tasks": self._num_tasks,
            "task": self._task,
            "task_range": self._task_range,
            "call": self._call,
        }
        of_session = {
            "create_session": self._create_session,
            "delete_session": self._delete,
            "create": self._create,
            "delete": self._delete,
            "ping": self._ping,
        }
        asked = {"splits", "tools", "task_tools", "prompt", "messages"}
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/list_environments", self._environments),
                *(Route(f"/{name}", reply, methods=["POST"]) for name, reply in of_session.items()),
                *(
                    Route(f"{prefix}/{name}", reply, methods=["GET" if name in asked else "POST"])
                    for prefix in ("", f"/{ENVIRONMENT}")
                    for name, reply in of_environment.items()
                ),
            ],
            middleware=[Middleware(_Guard, limits=self._limits)],
            exception_handlers={HTTPException: _refused, UserError: _user_error},
            lifespan=self._lifespan,
        )

    @property
    def is_open(self) -> bool:
        """Return whether everyone who reaches the server may use it."""
        return self._limits.token is None

    @property
    def left_out(self) -> int:
        """Return how many tasks are not served, since a user speaks again in them."""
        return sum(len(tasks) for tasks in self._host.splits.values()) - sum(map(len, self._places.values()))

    @property
    def sessions(self) -> int:
        """Return how many are open."""
        return len(self._sessions)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        closing = asyncio.create_task(self._close_idle())
        try:
            yield
        finally:
            closing.cancel()
            await asyncio.gather(*(self._close(name) for name in list(self._sessions)))

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._limits.idle_s / 4))
            oldest = time.monotonic() - self._limits.idle_s
            for name in [n for n, session in self._sessions.items() if session.used_at < oldest]:
                await self._close(name)

    async def _close(self, name: str) -> None:
        """Forget a session, whatever it is doing, and end its servers."""
        session = self._sessions.pop(name, None)
        if session is None:
            return
        tasks: set[asyncio.Task[Any]] = {*session.calls.values()}
        if session.started is not None:
            tasks.add(session.started)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if session.episode is not None:
            await session.episode.close()

    # What there is.

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "sessions": self.sessions})

    async def _environments(self, _: Request) -> Response:
        return JSONResponse([ENVIRONMENT])

    async def _splits(self, _: Request) -> Response:
        kinds = [{"name": name, "type": _SPLIT_KINDS.get(name, "test")} for name in self._places]
        return JSONResponse(kinds)

    async def _tasks(self, request: Request) -> Response:
        split = self._known_split((await _read(request, _SplitName)).split)
        tasks = [self._spec(split, index) for index in range(len(self._places[split]))]
        return JSONResponse({"tasks": tasks, "env_name": ENVIRONMENT})

    async def _num_tasks(self, request: Request) -> Response:
        split = self._known_split((await _read(request, _SplitName)).split)
        return JSONResponse({"num_tasks": len(self._places[split])})

    async def _task(self, request: Request) -> Response:
        asked = await _read(request, _TaskIndex)
        spec = self._spec(self._known_split(asked.split), asked.index)
        return JSONResponse({"task": spec, "env_name": ENVIRONMENT})

    async def _task_range(self, request: Request) -> Response:
        asked = await _read(request, _TaskRange)
        split = self._known_split(asked.split)
        places = range(len(self._places[split]))[asked.start : asked.stop]
        return JSONResponse({"tasks": [self._spec(split, i) for i in places], "env_name": ENVIRONMENT})

    async def _tools(self, _: Request) -> Response:
        # Which of them a task offers, its session says.
        return self._listed(())

    def _known_split(self, name: str) -> str:
        if name not in self._places:
            raise HTTPException(400, f"there is no split {name!r}; there are {', '.join(self._places)}")
        return name

    def _spec(self, split: str, index: int) -> JsonObject:
        task = self._at(split, index)
        prompt = [message.model_dump() for message in task.prompt]
        return {"task_id": task.id, "split": split, "index": index, "prompt": prompt}

    def _at(self, split: str, index: int) -> Task:
        places = self._places[self._known_split(split)]
        if not 0 <= index < len(places):
            raise HTTPException(400, f"split {split!r} has tasks 0 to {len(places) - 1}, not {index}")
        return self._host.splits[split][places[index]]

    # A session and its episode.

    async def _create_session(self, _: Request) -> Response:
        if len(self._sessions) >= self._limits.sessions:
            raise HTTPException(
                503,
                f"all {self._limits.sessions} sessions are in use; end one, or start the server with more",
                headers={"Retry-After": "5"},
            )
        name = secrets.token_urlsafe(24)  # whoever knows it has the session: it cannot be guessed
        self._sessions[name] = _Session(used_at=time.monotonic())
        return _stream([("task_id", name), ("end", "")])

    async def _create(self, request: Request) -> Response:
        session = self._session(request)
        asked = await _read(request, _Create)
        if session.episode is not None:
            raise HTTPException(400, "this session has an episode already; create another session")
        if asked.env_name not in (None, ENVIRONMENT):
            raise HTTPException(404, f"there is no environment {asked.env_name!r}; there is {ENVIRONMENT}")
        named = asked.task_spec or asked
        if named.split is None or named.index is None:
            raise HTTPException(400, "name the task by split and index, or give the task_spec that lists it")
        task = self._at(named.split, named.index)
        if asked.task_spec is not None and asked.task_spec.task_id not in (None, task.id):
            raise HTTPException(
                409,
                f"task {named.index} of {named.split!r} is {task.id}, not {asked.task_spec.task_id}: the "
                "dataset has changed; list its tasks again",
            )
        session.episode = self._host.episode(task)
        session.started = asyncio.create_task(session.episode.start())
        return JSONResponse({"sid": request.headers["x-session-id"]})

    async def _delete(self, request: Request) -> Response:
        name = request.headers.get("x-session-id", "")
        await self._close(name)
        return JSONResponse({"sid": name})

    async def _ping(self, request: Request) -> Response:
        self._session(request)
        return JSONResponse({"status": "ok"})

    def _session(self, request: Request) -> _Session:
        session = self._sessions.get(request.headers.get("x-session-id", "").strip())
        if session is None:
            raise HTTPException(
                404, "there is no such session: it ended, it was idle for too long, or it was never created"
            )
        session.used_at = time.monotonic()
        return session

    async def _ready(self, request: Request) -> tuple[_Session, HostedEpisode]:
        session = self._session(request)
        if session.episode is None or session.started is None:
            raise HTTPException(404, "this session has no episode: POST /create first")
        done, _ = await asyncio.wait([session.started], timeout=_START_WAIT_S)
        if not done:
            headers = {"X-Backend-State": "starting", "Retry-After": "2"}
            raise HTTPException(503, "the servers of this episode are still starting", headers=headers)
        session.started.result()
        return session, session.episode

    async def _task_tools(self, request: Request) -> Response:
        _, episode = await self._ready(request)
        return self._listed(episode.schemas)

    def _listed(self, schemas: tuple[JsonObject, ...]) -> Response:
        functions = [schema["function"] for schema in schemas]
        return JSONResponse(
            {
                "tools": [
                    {
                        "name": f["name"],
                        "description": f.get("description", ""),
                        "input_schema": f["parameters"],
                    }
                    for f in functions
                ],
                "terminal_tool": {
                    "name": self._answer,
                    "arg": "text",
                    "description": "Takes the model's last message, which ends the episode.",
                },
                "supports_score_group": False,
                "message_block_types": ["text"],
            }
        )

    async def _prompt(self, request: Request) -> Response:
        _, episode = await self._ready(request)
        return JSONResponse([_block(message["content"]) for message in episode.prompt])

    async def _messages(self, request: Request) -> Response:
        _, episode = await self._ready(request)
        return JSONResponse([{"role": m["role"], "blocks": [_block(m["content"])]} for m in episode.prompt])

    async def _call(self, request: Request) -> Response:
        session, episode = await self._ready(request)
        asked = await _read(request, _Call)
        name = asked.task_id
        if name is None:
            name = secrets.token_urlsafe(12)
            session.calls[name] = asyncio.create_task(self._carry_out(session, episode, asked))
        elif name not in session.calls:
            raise HTTPException(404, f"this session has no call {name!r} to take up again")
        running = session.calls[name]
        await asyncio.wait([running], timeout=_AT_ONCE_S)
        if running.done():
            return _stream([("task_id", name), *_last_events(running)])
        return StreamingResponse(_events(name, running), media_type="text/event-stream")

    async def _carry_out(self, session: _Session, episode: HostedEpisode, asked: _Call) -> JsonObject:
        """Return the `RunToolOutput` of one call."""
        if asked.name == self._answer:
            text = asked.input.get("text")
            if not isinstance(text, str):
                return _error("input_validation", f"{self._answer} takes one argument: text, a string")
            out = await episode.act(text)
        else:
            out = await episode.act("", [(asked.name, asked.input)])
        if out is None and session.trajectory is not None:
            return _error("episode_finished", "the episode has ended; create a session for another one")
        if not episode.done:
            assert out is not None
            return _output(out, reward=None)
        session.trajectory = await episode.trajectory()
        self._on_end(session.trajectory)
        await episode.close()
        return _output(out, reward=session.trajectory)


def _output(out: StepOutput | None, *, reward: Trajectory | None) -> JsonObject:
    seen = [] if out is None else [_block(str(message["content"])) for message in out.observations]
    output: JsonObject = {"blocks": seen, "metadata": None, "reward": None, "finished": reward is not None}
    if reward is not None:
        output["reward"] = reward.reward
        output["metadata"] = {
            "unscored": reward.reward is None,
            "success": reward.is_success,
            "stop_reason": str(reward.stop_reason),
            "terms": {term.name: term.value for term in reward.reward_terms},
            "errors": list(reward.errors),
            "trajectory_id": reward.id,
        }
    return {"ok": True, "output": output}


def _error(reason: str, error: str) -> JsonObject:
    return {"ok": False, "error": error, "reason": reason}


def _block(text: str) -> JsonObject:
    return {"text": text, "detail": None, "type": "text"}


async def _events(name: str, call: asyncio.Task[JsonObject]) -> AsyncIterator[str]:
    """The events of a call. A client that goes away leaves the call running: it may come back."""
    yield _event("task_id", name)
    while not call.done():
        await asyncio.wait([call], timeout=_PING_S)
        if not call.done():
            yield ": still running\n\n"
    for event in _last_events(call):
        yield _event(*event)


def _last_events(call: asyncio.Task[JsonObject]) -> list[tuple[str, str]]:
    """Return what a call that is over came to."""
    if call.cancelled():
        return [("error", "the session was ended")]
    if (error := call.exception()) is not None:
        return [("error", f"{type(error).__name__}: {error}")]
    text = json.dumps(call.result())
    parts = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    return [*(("chunk", part) for part in parts[:-1]), ("end", parts[-1])]


def _event(kind: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {kind}\n{lines}\n"


def _stream(events: list[tuple[str, str]]) -> Response:
    return Response("".join(_event(*event) for event in events), media_type="text/event-stream")


async def _read(request: Request, kind: type[_B]) -> _B:
    """Raise HTTPException for a body that is not JSON, or not what is asked for."""
    try:
        return kind.model_validate_json(await request.body() or b"{}")
    except pydantic.ValidationError as error:
        raise HTTPException(400, "; ".join(describe(detail) for detail in error.errors())) from None


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code, headers=error.headers)


async def _user_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return JSONResponse({"detail": str(error)}, status_code=400)


class _Guard:
    """Refuses requests without the token, and bodies that are too large, before anything reads them."""

    def __init__(self, app: ASGIApp, *, limits: ServeLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        expected = self._limits.token
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if expected is not None and not hmac.compare_digest(given, expected.encode()):
            refusal = {"detail": "this server asks for the token that it was started with"}
            await JSONResponse(refusal, status_code=401)(scope, receive, send)
            return
        left = self._limits.body

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"the body is larger than {self._limits.body} bytes")
            return message

        await self._app(scope, bounded, send)
