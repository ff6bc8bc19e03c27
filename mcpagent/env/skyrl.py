"""SkyRL adapters: an Episode behind `skyrl_gym`'s synchronous `BaseTextEnv`, MCP tools as a `ToolGroup`.

This is the only module below the engines that imports skyrl_gym (half a CPU second). SkyRL calls `init`,
`step` and `close` from a pool of threads and ends a whole generation at the first exception, so the episodes
run on one I/O thread of this process, and a failing episode ends as an unscored one instead of raising.
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
from typing import Any, Literal

import pydantic
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry
from skyrl_gym.tools.core import ToolGroup

from mcpagent.config.schema import RewardConfig, ToolsConfig
from mcpagent.core.hidden_text import without_marks
from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.registry import ToolFormat
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn
from mcpagent.env.episode import Episode, EpisodeLimits, StepOutput, prompt_messages, search_turns
from mcpagent.env.offer import discovery
from mcpagent.errors import EpisodeError, UserError
from mcpagent.reward.record import Reward
from mcpagent.reward.terms import load_reward
from mcpagent.tools.setup import Tools, open_tools

ENV_ID = "MCPToolEnv"
EPISODE = "mcpagent_episode"  # the key of `extras` that `EpisodePlace` travels under


class EnvConfig(Record):
    """The `env_config` of SkyRL (`environment.skyrl_gym.MCPToolEnv`). `tools` is the section of that name of
    a run's configuration, as a whole; or its main settings stand here: `servers` is the path of an `mcp.json`
    (None runs the built-in servers in this process), `limited` gives those their small tool sets.
    `tool_format` is the dialect in which the model is told to call tools. `log_dir` gets what servers write
    to stderr. `reward_weights` and `reward_terms` are those of the section `reward`."""

    tools: ToolsConfig | None = None
    servers: str | None = None
    limited: bool = True
    tool_timeout_s: float = 30.0
    episode_timeout_s: float | None = None
    max_tool_calls: int = 64
    message_limit_chars: int = 1_000_000
    tool_format: ToolFormat = "auto"
    discovery: Literal["all", "search"] = "all"
    pinned: tuple[str, ...] = ()
    reward_weights: dict[str, float] = {}
    reward_terms: tuple[str, ...] = ()
    log_dir: str | None = None

    @pydantic.model_validator(mode="after")
    def _only_one_of_two(self) -> EnvConfig:
        short = {"servers", "limited", "tool_timeout_s", "discovery", "pinned"} & self.model_fields_set
        if self.tools is not None and short:
            raise ValueError(f"{', '.join(sorted(short))} and the section tools say it twice")
        return self

    @property
    def section(self) -> ToolsConfig:
        """Return the section `tools` in force."""
        return self.tools or ToolsConfig(
            servers=self.servers,
            limited=self.limited,
            timeout_s=self.tool_timeout_s,
            discovery=self.discovery,
            pinned=self.pinned,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodePlace:
    """Which attempt at which task an environment plays, for records of it. `renders` is True if the one
    who drives the environment keeps control tokens out of texts itself."""

    group_id: str
    attempt: int
    seed: int
    renders: bool = False


def register() -> None:
    """Make `env_class: MCPToolEnv` known to skyrl_gym. On Ray, call it inside the remote task. Idempotent."""
    if ENV_ID not in registry:
        skyrl_gym.register(id=ENV_ID, entry_point=f"{__name__}:MCPToolEnv")


def start_servers(env_config: object = None) -> Tools:
    """Start the servers that environments of this configuration share, if they are not running; they end
    with the process. Raises UserError if one does not start."""
    return _runtime(_parse_config(env_config)).tools


class MCPToolEnv(BaseTextEnv):
    """One episode of one dataset record. The whole reward is given at the last step.

    `begin`, `take`, `finish` and `end` are the same for callers with an event loop: they run on the I/O
    thread (`start_servers(...).io`) and block no other thread.
    """

    def __init__(self, env_config: object = None, extras: Mapping[str, Any] | None = None) -> None:
        """`extras` are the record's other columns; SkyRL adds its own `max_turns`. Raises UserError."""
        super().__init__()
        self._config = _parse_config(env_config)
        self._extras = dict(extras or {})
        self._place: EpisodePlace | None = self._extras.pop(EPISODE, None)
        self._runtime: _Runtime | None = None
        self._episode: Episode | None = None
        self._prompt: list[JsonObject] = []
        self._turns: list[Turn] = []
        self._reward: float | None = None
        self._terms: dict[str, float | None] = {}
        self._errors: list[str] = []
        self._counts = {"turns": 0, "tool_calls": 0, "tool_errors": 0, "parse_failures": 0, "searches": 0}

    @property
    def errors(self) -> tuple[str, ...]:
        """Return what went wrong with the machinery, if anything did."""
        return tuple(self._errors)

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Return the prompt, and the offered schemas under `tools`. Raises UserError for a record that
        can't be run; servers that fail are reported by the first step."""
        task = _task(prompt, self._extras)
        self._runtime = _runtime(self._config)
        return self._runtime.tools.io.run(self._begin(task))

    async def begin(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """`init` on the I/O thread; `start_servers` comes before it."""
        task = _task(prompt, self._extras)
        self._runtime = _runtime(self._config)
        return await self._begin(task)

    async def _begin(self, task: Task) -> tuple[list[dict[str, str]], dict[str, Any]]:
        assert self._runtime is not None
        limits = EpisodeLimits(
            max_turns=self._extras.get("max_turns"),
            max_tool_calls=self._config.max_tool_calls,
            timeout_s=self._config.episode_timeout_s,
            message_limit_chars=self._config.message_limit_chars,
        )
        search = discovery(self._config.section)
        self.max_turns = min(task.truth.max_turns, limits.max_turns or task.truth.max_turns)
        if search is not None:
            self.max_turns += search_turns(task)
        place = self._place or EpisodePlace(group_id=task.id, attempt=0, seed=0)
        # Attempts at one task are different episodes, also for servers that keep a state for each.
        name = f"{place.group_id}#{place.attempt}" if self._place else f"{task.id}#{uuid.uuid4().hex}"
        self._place = place
        self._episode = Episode(
            task,
            self._runtime.tools.pool,
            limits=limits,
            episode_id=name,
            tool_format=self._config.tool_format,
            discovery=search,
            seed=derive_seed(place.seed, "user"),
            reward=_reward(self._config),
        )
        self._prompt = prompt_messages(task, limits.message_limit_chars)
        messages = [self._shown(message) for message in self._prompt]
        try:
            start = await self._episode.start()
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: one exception would abort every other episode
            await self._fail(error)
            return messages, {}
        return messages, {"tools": [self._shown(schema) for schema in start.tool_schemas]}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Never raises: whatever fails ends the episode with reward 0.0 and `metadata["unscored"]`."""
        if self._runtime is None:
            return self._unscored()
        return self._runtime.tools.io.run(self.take(Completion(text=action)))

    async def take(
        self, completion: Completion, *, added_token_ids: tuple[int, ...] = ()
    ) -> BaseTextEnvStepOutput:
        """`step` with what is known of the completion: a cut one ends the episode, its calls are not made.
        `added_token_ids` is what the model saw since its last completion."""
        self.turns += 1
        if self._episode is None or self._episode.done or self._errors:
            return self._unscored()
        started = time.perf_counter()
        try:
            output = await self._episode.step(completion.text, finish=completion.finish_reason)
            wall_s = time.perf_counter() - started
            self._turns.append(
                output.as_turn(len(self._turns), completion, added_token_ids=added_token_ids, wall_s=wall_s)
            )
            self._count(output)
            if not output.done:
                return self._output(output, reward=0.0, metadata={"unscored": False})
            trajectory = await self.trajectory()
        except Exception as error:  # noqa: BLE001 - boundary: one exception would abort every other episode
            await self._fail(error)
            return self._unscored()
        metadata = {
            "unscored": trajectory.reward is None,
            "stop_reason": str(output.stop_reason),
            "terms": dict(self._terms),
            "errors": list(self._errors),
        }
        return self._output(output, reward=trajectory.reward or 0.0, metadata=metadata)

    async def finish(self, reason: StopReason) -> None:
        """End the episode from outside, as when the context leaves no room for another turn."""
        if self._episode is not None and not self._errors:
            try:
                await self._episode.finish(reason)
                await self.trajectory()
            except Exception as error:  # noqa: BLE001 - boundary: as in `take`
                await self._fail(error)

    async def trajectory(self) -> Trajectory:
        """Return the record of the ended episode, with its reward. Needs an episode that has begun."""
        assert self._episode is not None and self._place is not None
        trajectory = await self._episode.trajectory(
            self._turns,
            prompt=self._prompt,
            group_id=self._place.group_id,
            attempt=self._place.attempt,
            seed=self._place.seed,
        )
        self._terms = {term.name: term.value for term in trajectory.reward_terms}
        self._reward = trajectory.reward
        self._errors = list(trajectory.errors)
        return trajectory

    async def _fail(self, error: Exception) -> None:
        """The episode has failed, and stays unscored."""
        assert self._episode is not None
        text = str(error) if isinstance(error, EpisodeError) else f"{type(error).__name__}: {error}"
        self._errors.append(text)
        await self._episode.finish(StopReason.FAILED, error=text)

    def close(self) -> None:
        """End the episode's own server instances."""
        if self._runtime is not None:
            self._runtime.tools.io.run(self.end())

    async def end(self) -> None:
        """`close` on the I/O thread."""
        if self._episode is not None:
            await self._episode.close()

    def get_metrics(self) -> dict[str, Any]:
        """Return numbers of the episode: counts, reward terms that ran, and whether it was scored."""
        scored = self._reward is not None
        terms = {name: value for name, value in self._terms.items() if value is not None}
        # A mean over episodes has those alone that report the number: `success` that of the scored ones.
        success = {"success_all": terms.get("success", 0.0) if scored else 0.0}
        return {**self._counts, **terms, **success, "unscored": float(not scored)}

    def _count(self, output: StepOutput) -> None:
        self._counts["turns"] += 1
        results = [result for result in output.tool_results if not result.is_search]
        self._counts["tool_calls"] += len(results)
        self._counts["searches"] += len(output.tool_results) - len(results)
        self._counts["tool_errors"] += sum(result.is_error for result in results)
        self._counts["parse_failures"] += len(output.parse_failures)

    def _shown(self, value: Any) -> Any:
        return value if self._place is not None and self._place.renders else _unmarked(value)

    def _output(
        self, output: StepOutput, *, reward: float, metadata: dict[str, Any]
    ) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(
            observations=[self._shown(message) for message in output.observations],
            reward=reward,
            done=output.done,
            metadata=metadata,
            postprocessed_action=None,
        )

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
        self._runtime = _runtime(_parse_config(env_config))
        self._session = self._runtime.tools.pool.session()
        self._made = 0
        super().__init__(name)

    def _register_tools(self) -> None:
        for name, spec in self._runtime.tools.pool.tools.items():
            self._tool_registry[name] = self._tool(spec)

    def _tool(self, spec: ToolSpec) -> Callable[[JsonObject], str]:
        def call(arguments: JsonObject) -> str:
            self._made += 1
            tool_call = ToolCall(
                id=f"c{self._made}", server=spec.server, tool=spec.name, arguments=dict(arguments)
            )
            return self._runtime.tools.io.run(self._session.call(tool_call)).content

        return call

    def close(self) -> None:
        """Close the session; the servers keep running for the other environments of this process."""
        self._runtime.tools.io.run(self._session.close())


@dataclasses.dataclass(frozen=True)
class _Runtime:
    """The started servers that all environments of this process with one configuration share."""

    tools: Tools
    close: Callable[[], None]


_runtimes: dict[str, _Runtime] = {}
_starting = threading.Lock()


def _runtime(config: EnvConfig) -> _Runtime:
    """Started at first use, ended with the process. Raises UserError if a server does not start."""
    key = config.section.model_dump_json()
    with _starting:
        if key not in _runtimes:
            stack = ExitStack()
            log_dir = None if config.log_dir is None else Path(config.log_dir)
            runtime = _Runtime(stack.enter_context(open_tools(config.section, log_dir=log_dir)), stack.close)
            atexit.register(runtime.close)
            _runtimes[key] = runtime
        return _runtimes[key]


def _reward(config: EnvConfig) -> Reward:
    """Raises UserError."""
    try:
        section = RewardConfig(weights=config.reward_weights, terms=config.reward_terms)
    except pydantic.ValidationError as error:
        raise UserError(
            "; ".join(describe(detail) for detail in error.errors()), where="env_config.reward_terms"
        ) from None
    if section.weightless:
        raise UserError(
            f"reward_weights names {', '.join(section.weightless)}, which is no term",
            where="env_config.reward_weights",
            remedy="name its function in reward_terms, or correct the name",
        )
    return load_reward(section)


def _parse_config(env_config: object) -> EnvConfig:
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


def _task(prompt: Sequence[Mapping[str, str]], extras: Mapping[str, Any]) -> Task:
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
        return Task.model_validate(record)
    except pydantic.ValidationError as error:
        raise UserError(
            "; ".join(describe(detail) for detail in error.errors()), where=f"{ENV_ID} record"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"reward_spec.ground_truth or extra_info is text, but not JSON: {error.msg}",
            where=f"{ENV_ID} record",
        ) from None


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
