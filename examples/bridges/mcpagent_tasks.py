"""A taskset of verifiers v1 (vf-eval, prime-rl) over `EpisodeServer`, which is a process of its own.

verifiers pins other versions of mcp and openai than mcpagent, so this file needs only verifiers:
docs/bridges.md has the command, verifiers.toml the settings.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import httpx
import verifiers.v1 as vf
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, Tool
from verifiers.v1.errors import TaskError
from verifiers.v1.mcp import SharedToolsetConfig, Toolset
from verifiers.v1.types import SystemMessage, UserMessage


def events(text: str) -> dict[str, str]:
    """The data of a stream of server-sent events by kind; the parts of a result are joined as `end`."""
    found: dict[str, str] = {}
    parts = ""
    for block in text.strip().split("\n\n"):
        fields = {key: value[1:] for key, _, value in (line.partition(":") for line in block.split("\n"))}
        kind, data = fields.get("event", ""), fields.get("data", "")
        parts += data if kind in ("chunk", "end") else ""
        found[kind] = parts if kind == "end" else data
    return found


class Episode(vf.State):
    """The session of one rollout on the server; `verdict` is the output of its last call."""

    url: str = ""
    session: str = ""
    answer_tool: str = ""
    tools: list[dict[str, Any]] = []
    verdict: dict[str, Any] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The server's answer. Raise TaskError with what it says if it refuses."""
        headers = {"X-Session-ID": self.session} if self.session else {}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=600) as client:
            response = await client.request(method, path, json=body)
        if not response.is_success:
            raise TaskError(f"{path}: {response.json()['detail']}")
        return response

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The text of a call's result, and whether it is an error."""
        said = events((await self.ask("POST", "/call", {"name": name, "input": arguments})).text)
        if "end" not in said:
            raise TaskError(said.get("error", "the server broke off"))
        result = json.loads(said["end"])
        if not result["ok"]:
            return result["error"], True
        if result["output"]["finished"]:
            self.verdict = result["output"]
        return "\n".join(block["text"] for block in result["output"]["blocks"]), False


class TaskConfig(vf.TaskConfig):
    """`url` is where the server of episodes listens."""

    url: str = "http://127.0.0.1:8000"


class Config(vf.TasksetConfig):
    """`split` is one that the dataset has."""

    split: str = "train"
    tools: SharedToolsetConfig = SharedToolsetConfig()
    task: TaskConfig = TaskConfig()


class Data(vf.TaskData):
    """`spec` names the task to the server."""

    spec: dict[str, Any]


class EpisodeTask(vf.Task[Data, Episode, TaskConfig]):
    """An episode on the server: its tools are the model's, its reward is the task's."""

    async def setup(self, trace: vf.Trace, runtime: Any) -> None:
        """Begin the episode."""
        state = trace.state
        state.url = self.config.url
        state.session = events((await state.ask("POST", "/create_session")).text)["task_id"]
        await state.ask("POST", "/create", {"task_spec": self.data.spec})
        listed = (await state.ask("GET", "/task_tools")).json()
        state.tools, state.answer_tool = listed["tools"], listed["terminal_tool"]["name"]

    @vf.reward(weight=1.0)
    async def mcpagent(self, trace: vf.Trace) -> float:
        """Raise TaskError for an episode that the server could not score: it is an error, never 0."""
        state = trace.state
        if state.verdict is None:
            await state.call(state.answer_tool, {"text": trace.last_reply or ""})
        verdict = cast("dict[str, Any]", state.verdict)
        await state.ask("POST", "/delete")
        if verdict["reward"] is None:
            raise TaskError("; ".join(verdict["metadata"]["errors"]) or "the episode is unscored")
        for name, value in verdict["metadata"]["terms"].items():
            if value is not None:
                trace.record_metric(name, value)
        return verdict["reward"]


class EpisodeTools(Toolset[SharedToolsetConfig, Episode]):
    """The tools of each rollout's episode, with the names and schemas of their servers."""

    TOOL_PREFIX = None

    def register(self, mcp: MCPServer) -> None:
        """Answer MCP's list and call by the rollout's own episode."""
        server = cast(Any, mcp)
        server.list_tools = self._with_state(self.list_tools)
        server.call_tool = self._with_state(self.call_tool)

    async def list_tools(self) -> list[Tool]:
        """Those that the task offers."""
        return [
            Tool.model_validate({**tool, "inputSchema": tool["input_schema"]}) for tool in self.state.tools
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context | None = None
    ) -> CallToolResult:
        """The episode's next step."""
        text, is_error = await self.state.call(name, arguments)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


class Tasks(vf.Taskset[EpisodeTask, Config]):
    """The tasks of one split, as the server lists them."""

    @classmethod
    def toolsets(cls, config: Config) -> list[Toolset]:
        """One server of tools for all rollouts."""
        return [EpisodeTools(config.tools)]

    def load(self) -> Iterator[EpisodeTask]:
        """Ask the server for its tasks and what a model is told of each."""
        kinds = {"system": SystemMessage, "user": UserMessage}
        with httpx.Client(base_url=self.config.task.url, timeout=60) as client:
            for spec in (
                client.post("/tasks", json={"split": self.config.split}).raise_for_status().json()["tasks"]
            ):
                prompt = [kinds[m["role"]](content=m["content"]) for m in spec["prompt"]]
                yield EpisodeTask(Data(name=spec["task_id"], prompt=prompt, spec=spec), self.config.task)


__all__ = ["Tasks"]

if __name__ == "__main__":
    EpisodeTools.run()
