"""A client of the Open Reward Standard that plays scripted policies, written from the protocol alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mcpagent.bridges.host import Host, open_host
from mcpagent.bridges.ors import EpisodeServer, ServeLimits
from mcpagent.bridges.serving import serve
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.parsing import parse_action
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling


@dataclass
class Served:
    """A running server, with what it graded so far."""

    host: Host
    server: EpisodeServer
    url: str
    graded: dict[str, Trajectory] = field(default_factory=dict)

    def client(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=300, **options)


@contextmanager
def served(data: Path, *overrides: str, limits: ServeLimits | None = None) -> Iterator[Served]:
    with open_host(data, overrides=overrides) as host:
        graded: dict[str, Trajectory] = {}
        server = EpisodeServer(host, limits, on_end=lambda t: graded.update({t.id: t}))
        with serve(server, host, port=0) as port:
            yield Served(host, server, f"http://127.0.0.1:{port}", graded)


def events(text: str) -> list[tuple[str, str]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(":", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append((fields["event"].strip(), fields["data"].removeprefix(" ")))
    return found


async def open_session(client: httpx.AsyncClient) -> str:
    answer = await client.post("/create_session")
    answer.raise_for_status()
    return dict(events(answer.text))["task_id"]


async def begin(client: httpx.AsyncClient, split: str, index: int) -> dict[str, str]:
    """The headers of a session with an episode of that task."""
    headers = {"X-Session-ID": await open_session(client)}
    answer = await client.post("/create", json={"split": split, "index": index}, headers=headers)
    answer.raise_for_status()
    return headers


async def call(
    client: httpx.AsyncClient, headers: dict[str, str], name: str, arguments: Any
) -> dict[str, Any]:
    answer = await client.post("/mcpagent/call", json={"name": name, "input": arguments}, headers=headers)
    answer.raise_for_status()
    parts = [data for kind, data in events(answer.text) if kind in ("chunk", "end")]
    return json.loads("".join(parts))


async def play(
    client: httpx.AsyncClient, policy: Policy, *, split: str, index: int, task_id: str, attempt: int = 0
) -> dict[str, Any]:
    """Play one episode to its end; returns the output of its last call."""
    headers = await begin(client, split, index)
    messages = [
        {"role": m["role"], "content": "".join(b["text"] for b in m["blocks"])}
        for m in (await client.get("/messages", headers=headers)).json()
    ]
    listed = (await client.get("/task_tools", headers=headers)).json()
    tools = tuple(
        {
            "type": "function",
            "function": {"name": t["name"], "description": t["description"], "parameters": t["input_schema"]},
        }
        for t in listed["tools"]
    )
    while True:
        request = CompletionRequest(
            episode_id=f"{task_id}#{attempt}",
            sampling=Sampling(),
            seed=attempt,
            token_ids=(),
            messages=tuple(messages),
            tools=tools,
        )
        text = (await policy.complete([request]))[0].text
        messages.append({"role": "assistant", "content": text})
        calls = parse_action(text).calls
        outputs = []
        for made in calls:
            outputs.append(await call(client, headers, made.written_as or made.tool, made.arguments))
            if outputs[-1].get("output", {}).get("finished"):
                break
        if not calls:
            outputs = [await call(client, headers, listed["terminal_tool"]["name"], {"text": text})]
        for output in outputs:
            messages += [{"role": "tool", "content": block["text"]} for block in output["output"]["blocks"]]
        if outputs[-1]["output"]["finished"]:
            await policy.release(f"{task_id}#{attempt}")
            await client.post("/delete", headers=headers)
            return outputs[-1]["output"]
