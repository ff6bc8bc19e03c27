"""SkyRL adapters: an Episode behind `skyrl_gym`'s synchronous `BaseTextEnv`, MCP tools as a `ToolGroup`.

SkyRL calls `init`, `step` and `close` from a pool of threads and ends a whole generation at the first
exception, so the episodes run on one I/O thread of this process, and a failing episode ends as an unscored
one instead of raising.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pydantic
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry
from skyrl_gym.tools.core import ToolGroup

from mcpagent.config.schema import RewardConfig, ToolsConfig
from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.registry import ToolFormat
from mcpagent.core.tasks import ENV_ID, Task
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn
from mcpagent.env.episode import Episode, EpisodeLimits, StepOutput, prompt_messages, search_turns
from mcpagent.env.offer import discovery
from mcpagent.errors import EpisodeError, UserError
from mcpagent.reward.terms import load_reward
from mcpagent.storage.datasets import parse_task
from mcpagent.tools.setup import Tools, open_tools


class EnvConfig(Record):
    """The `env_config` of SkyRL (`environment.skyrl_gym.MCPToolEnv`). `tools` and `reward` are the sections
    of a run's configuration, `tool_format` is the dialect in which the model is told to call tools, `log_dir`
    gets what servers write to stderr."""

    tools: ToolsConfig = ToolsConfig()
    reward: RewardConfig = RewardConfig()
    tool_format: ToolFormat = "auto"
    episode_timeout_s: float | None = None
    max_tool_calls: int = 64
    message_limit_chars: int = 1_000_000
    log_dir: str | None = None

    @pydantic.model_validator(mode="after")
    def _every_weight_has_a_term(self) -> EnvConfig:
        if self.reward.weightless:
            raise ValueError(f"reward.weights names {', '.join(self.reward.weightless)}, which is no term")
        return self

    def limits(self, *, max_turns: int | None) -> EpisodeLimits:
        """Return the limits of an episode; `max_turns` is the generator's."""
        return EpisodeLimits(
            max_turns=max_turns,
            max_tool_calls=self.max_tool_calls,
            timeout_s=self.episode_timeout_s,
            message_limit_chars=self.message_limit_chars,
        )


def register() -> None:
    """Make `env_class: MCPToolEnv` known to skyrl_gym. On Ray, call it inside the remote task. Idempotent."""
    if ENV_ID not in registry:
        skyrl_gym.register(id=ENV_ID, entry_point=f"{__name__}:MCPToolEnv")


class MCPToolEnv(BaseTextEnv):
    """One episode of one dataset record. The whole reward is given at the last step."""

    def __init__(self, env_config: object = None, extras: Mapping[str, Any] | None = None) -> None:
        """`extras` are the record's other columns; SkyRL adds its own `max_turns`. Raises UserError."""
        super().__init__()
        self._config = parse_config(env_config)
        self._extras = dict(extras or {})
        self._tools: Tools | None = None
        self._episode: Episode | None = None
        self._prompt: list[JsonObject] = []
        self._turns: list[Turn] = []
        self._graded: Trajectory | None = None
        self._errors: list[str] = []

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Return the prompt, and the offered schemas under `tools`. Raises UserError for a record that
        can't be run; servers that fail are reported by the first step."""
        task = task_of(prompt, self._extras)
        self._tools = start_servers(self._config)
        return self._tools.io.run(self._begin(task, self._tools))

    async def _begin(self, task: Task, tools: Tools) -> tuple[list[dict[str, str]], dict[str, Any]]:
        limits = self._config.limits(max_turns=self._extras.get("max_turns"))
        search = discovery(self._config.tools)
        self.max_turns = min(task.truth.max_turns, limits.max_turns or task.truth.max_turns)
        if search is not None:
            self.max_turns += search_turns(task)
        # Attempts at one task are different episodes, also for servers that keep a state for each.
        self._episode = Episode(
            task,
            tools.pool,
            limits=limits,
            episode_id=f"{task.id}#{uuid.uuid4().hex}",
            tool_format=self._config.tool_format,
            discovery=search,
            reward=load_reward(self._config.reward),
        )
        self._prompt = prompt_messages(task, limits.message_limit_chars)
        try:
            start = await self._episode.start()
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: one exception would abort every other episode
            await self._fail(self._episode, error)
            return _unmarked(self._prompt), {}
        return _unmarked(self._prompt), {"tools": _unmarked(start.tool_schemas)}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Never raises: whatever fails ends the episode with reward 0.0 and `metadata["unscored"]`."""
        self.turns += 1
        if self._tools is None or self._episode is None or self._episode.done:
            return self._unscored()
        return self._tools.io.run(self._take(self._episode, action))

    async def _take(self, episode: Episode, action: str) -> BaseTextEnvStepOutput:
        started = time.perf_counter()
        try:
            output = await episode.step(action)
            wall_s = time.perf_counter() - started
            self._turns.append(output.as_turn(len(self._turns), Completion(text=action), wall_s=wall_s))
            if not output.done:
                return _step_output(output, reward=0.0, metadata={"unscored": False})
            graded = await episode.trajectory(
                self._turns, prompt=self._prompt, group_id=episode.task.id, attempt=0, seed=0
            )
        except Exception as error:  # noqa: BLE001 - boundary: one exception would abort every other episode
            await self._fail(episode, error)
            return self._unscored()
        self._graded, self._errors = graded, list(graded.errors)
        metadata = {
            "unscored": graded.reward is None,
            "stop_reason": str(output.stop_reason),
            "terms": {term.name: term.value for term in graded.reward_terms},
            "errors": list(graded.errors),
        }
        return _step_output(output, reward=graded.reward or 0.0, metadata=metadata)

    async def _fail(self, episode: Episode, error: Exception) -> None:
        """The episode has failed, and stays unscored."""
        text = str(error) if isinstance(error, EpisodeError) else f"{type(error).__name__}: {error}"
        self._errors.append(text)
        await episode.finish(StopReason.FAILED, error=text)

    def close(self) -> None:
        """End the episode's own server instances."""
        if self._tools is not None and self._episode is not None:
            self._tools.io.run(self._episode.close())

    def get_metrics(self) -> dict[str, Any]:
        """Return the numbers of the episode so far."""
        return episode_metrics(self._turns, self._graded)

    def _unscored(self) -> BaseTextEnvStepOutput:
        errors = self._errors or ["step was called before init, or after the end"]
        return BaseTextEnvStepOutput(
            observations=[],
            reward=0.0,
            done=True,
            metadata={"unscored": True, "errors": errors},
            postprocessed_action=None,
        )


class MCPToolGroup(ToolGroup):
    """The MCP tools for other environments of skyrl_gym: `execute_tool(name, {"argument": value})` gives the
    text of the result. A session of its own; close it."""

    def __init__(self, env_config: object = None, *, name: str = "mcp") -> None:
        self._tools = start_servers(parse_config(env_config))
        self._session = self._tools.pool.session()
        self._made = 0
        super().__init__(name)

    def _register_tools(self) -> None:
        for name, spec in self._tools.pool.tools.items():
            self._tool_registry[name] = self._tool(spec)

    def _tool(self, spec: ToolSpec) -> Callable[[JsonObject], str]:
        def call(arguments: JsonObject) -> str:
            self._made += 1
            tool_call = ToolCall(
                id=f"c{self._made}", server=spec.server, tool=spec.name, arguments=dict(arguments)
            )
            return self._tools.io.run(self._session.call(tool_call)).content

        return call

    def close(self) -> None:
        """Close the session; the servers keep running for the other environments of this process."""
        self._tools.io.run(self._session.close())


def _step_output(output: StepOutput, *, reward: float, metadata: dict[str, Any]) -> BaseTextEnvStepOutput:
    return BaseTextEnvStepOutput(
        observations=_unmarked(output.observations),
        reward=reward,
        done=output.done,
        metadata=metadata,
        postprocessed_action=None,
    )


def episode_metrics(turns: Sequence[Turn], graded: Trajectory | None) -> dict[str, Any]:
    """Return numbers of an episode: counts, reward terms that ran, and whether it was scored. `graded` None:
    it has no grade."""
    results = [result for turn in turns for result in turn.tool_results]
    called = [result for result in results if not result.is_search]
    terms = {} if graded is None else {t.name: t.value for t in graded.reward_terms if t.value is not None}
    is_scored = graded is not None and graded.reward is not None
    return {
        "turns": len(turns),
        "tool_calls": len(called),
        "tool_errors": sum(result.is_error for result in called),
        "parse_failures": sum(len(turn.parse_failures) for turn in turns),
        "searches": len(results) - len(called),
        **terms,
        # A mean over episodes has those alone that report the number: `success` that of the scored ones.
        "success_all": terms.get("success", 0.0) if is_scored else 0.0,
        "unscored": float(not is_scored),
    }


_started: dict[str, Tools] = {}
_starting = threading.Lock()


def start_servers(config: EnvConfig) -> Tools:
    """Start the servers that environments of this configuration share, if they are not running; they end
    with the process. Raises UserError if one does not start."""
    key = config.tools.model_dump_json()
    with _starting:
        if key not in _started:
            stack = ExitStack()
            log_dir = None if config.log_dir is None else Path(config.log_dir)
            _started[key] = stack.enter_context(open_tools(config.tools, log_dir=log_dir))
            atexit.register(stack.close)
        return _started[key]


def parse_config(env_config: object) -> EnvConfig:
    """SkyRL hands over a dict, an OmegaConf mapping or a dataclass. Raises UserError."""
    if dataclasses.is_dataclass(env_config) and not isinstance(env_config, type):
        env_config = dataclasses.asdict(env_config)
    try:
        return EnvConfig.model_validate(
            _plain(env_config) if isinstance(env_config, Mapping) else env_config or {}
        )
    except pydantic.ValidationError as error:
        problems = "; ".join(describe(detail, root="env_config") for detail in error.errors())
        raise UserError(problems, where=f"environment.skyrl_gym.{ENV_ID}") from None


def _plain(value: Any) -> Any:
    """OmegaConf's mappings and lists as Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return [_plain(item) for item in value] if is_list else value


def task_of(prompt: Sequence[Mapping[str, str]], extras: Mapping[str, Any]) -> Task:
    """Return the record that SkyRL took apart. A parquet file stores the ground truth as JSON text, or
    fills missing keys with nulls. Raises UserError."""
    reward_spec = dict(extras.get("reward_spec") or {})
    try:
        reward_spec["ground_truth"] = _from_text(reward_spec.get("ground_truth"))
        record = {
            "prompt": [dict(message) for message in prompt],
            "reward_spec": reward_spec,
            "data_source": extras.get("data_source") or "unknown",
            "extra_info": _from_text(extras.get("extra_info") or {}),
        }
    except json.JSONDecodeError as error:
        raise UserError(
            f"reward_spec.ground_truth or extra_info is text, but not JSON: {error.msg}",
            where=f"{ENV_ID} record",
        ) from None
    return parse_task(record, where=f"{ENV_ID} record")


def _from_text(value: Any) -> Any:
    return _without_nulls(json.loads(value) if isinstance(value, str) else value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def _unmarked(value: Any) -> Any:
    """Return a message or a schema whose texts hold no mark of a chat template: the tokenizer is not ours
    to ask."""
    if isinstance(value, str):
        return without_marks(value)
    if isinstance(value, dict):
        return {_unmarked(key): _unmarked(item) for key, item in value.items()}
    return [_unmarked(item) for item in value] if isinstance(value, list | tuple) else value
