"""What can be chosen by name, one family each: the configuration's values, the command line's and the code's.

A member is its name, a sentence, and the dotted place of its implementation, which is imported when it is
first used: this module imports nothing heavy. Adding a member is the file that implements it and a line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal


@dataclass(frozen=True)
class Member:
    """One member of a family. `place` is `module:attribute`."""

    summary: str
    place: str


class Family(Mapping[str, Member]):
    """Members by name, in the order in which they are shown. `kind` says what they are, for errors."""

    def __init__(self, kind: str, members: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        self._members = {name: Member(summary, place) for name, (summary, place) in members.items()}

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def load(self, name: str) -> Any:
        """Return the implementation of `name`. Raises LookupError, which lists the names, for any other."""
        member = self._members.get(name)
        if member is None:
            raise LookupError(f"{name!r} is not a name of a {self.kind}; there are {', '.join(self)}")
        return _load(member.place)


@cache
def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


_ADVANTAGES = "mcpagent.train.objective.advantages"
_LOSSES = "mcpagent.train.objective.loss"
_DIALECTS = "mcpagent.env.dialects"
_JUDGE = "mcpagent.reward.judge"

ADVANTAGES = Family(
    "advantage",  # grpo.advantage: instances of `Estimator`
    {
        "group": ("against the mean of the group", f"{_ADVANTAGES}:GROUP"),
        "rloo": ("against the mean of the group's other attempts", f"{_ADVANTAGES}:RLOO"),
        "reinforce++": ("against the mean of the whole batch", f"{_ADVANTAGES}:REINFORCE"),
        "gae": ("against a learned value of each turn", f"{_ADVANTAGES}:GAE"),
        "turn": ("each turn's own credit and the outcome", f"{_ADVANTAGES}:TURN"),
    },
)
LOSSES = Family(
    "loss",  # grpo.loss: instances of `Loss`
    {
        "grpo": ("clipped ratio; mean of the samples' means", f"{_LOSSES}:GRPO"),
        "dr_grpo": ("clipped ratio; sums over a fixed length", f"{_LOSSES}:DR_GRPO"),
        "dapo": ("clipped ratio; mean over all tokens", f"{_LOSSES}:DAPO"),
        "gspo": ("one clipped ratio a sample", f"{_LOSSES}:GSPO"),
        "cispo": ("bounded weights instead of clipped tokens", f"{_LOSSES}:CISPO"),
    },
)
KL_ESTIMATORS = Family(
    "KL estimator",  # grpo.kl_estimator: functions of the log ratios [N]
    {
        "k1": ("the log ratio; for the reward", f"{_LOSSES}:k1"),
        "k2": ("half its square; for the loss", f"{_LOSSES}:k2"),
        "k3": ("unbiased and never negative; for the loss", f"{_LOSSES}:k3"),
    },
)
DIALECTS = Family(
    "tool format",  # rollout.tool_format: instances of `Dialect`
    {
        "hermes": ("JSON in <tool_call> tags", f"{_DIALECTS}.tagged:HERMES"),
        "qwen3_coder": ("<function=NAME> with <parameter=NAME>", f"{_DIALECTS}.tagged:QWEN3_CODER"),
        "llama3": ("JSON with name and parameters", f"{_DIALECTS}.json_forms:LLAMA3"),
        "mistral": ("[TOOL_CALLS] and JSON", f"{_DIALECTS}.json_forms:MISTRAL"),
        "glm": ("<arg_key> and <arg_value> in <tool_call> tags", f"{_DIALECTS}.tagged:GLM"),
        "gemma4": ("call:NAME{key:value} in <|tool_call> tags", f"{_DIALECTS}.families:GEMMA4"),
        "pythonic": ("Python calls in <|tool_call_start|> tags", f"{_DIALECTS}.families:PYTHONIC"),
        "harmony": ("messages to=functions.NAME in channels", f"{_DIALECTS}.families:HARMONY"),
        "atem": ("messages to=NAME with <atem:invoke>", f"{_DIALECTS}.families:ATEM"),
        "json": ("a JSON object", f"{_DIALECTS}.json_forms:JSON"),
        "xml": ("tags named as the tool", f"{_DIALECTS}.tagged:XML"),
    },
)
TOOL_FORMATS = ("auto", *DIALECTS)  # auto: as the model's chat template writes calls
REWARD_METHODS = Family(
    "reward method",  # reward_spec.method of a record: graders of an ended episode
    {
        "rule": ("deterministic, from calls, answer and end state", "mcpagent.reward.rule:grade_by_rule"),
        "judge": (
            "a model's verdict; on the successes of a rule, if one can check",
            f"{_JUDGE}:grade_by_judge",
        ),
        "rule+judge": ("the rule, and a model on its successes", f"{_JUDGE}:grade_by_rule_and_judge"),
    },
)
BACKENDS = Family(
    "rollout backend",  # rollout.backend: policies
    {
        "hf": ("transformers, in this process", "mcpagent.policy.hf.policy:HFPolicy"),
        "vllm": ("vLLM, in this process or on servers", "mcpagent.policy.vllm.engine:VllmPolicy"),
    },
)
TRACKERS = Family(
    "tracker",  # tracking.backends, each the name of its package too: called with a `TrackedRun`
    {
        "wandb": ("Weights & Biases", "mcpagent.train.trackers:Wandb"),
        "weave": ("episodes as traces", "mcpagent.train.trackers:Weave"),
        "trackio": ("a local dashboard", "mcpagent.train.trackers:Trackio"),
        "tensorboard": ("event files", "mcpagent.train.trackers:TensorBoard"),
    },
)
TOOL_PROVIDERS = Family(
    "tool provider",  # called with the names and the settings of its servers; gives how to start them
    {"builtin": ("the servers that ship with mcpagent", "mcpagent.servers.provider:builtin_servers")},
)
ENGINES = Family(
    "engine",  # engine: instances of `Engine`
    {
        "native": ("this process, or those of torchrun", "mcpagent.engines:NATIVE"),
        "skyrl": ("SkyRL on a Ray cluster", "mcpagent.engines.skyrl.engine:ENGINE"),
    },
)

# For annotations: pydantic sees the names, a type checker strings, since it cannot read a list.
if TYPE_CHECKING:
    AdvantageName = LossName = KLName = ToolFormat = BackendName = TrackerName = EngineName = str
else:
    AdvantageName = Literal[tuple(ADVANTAGES)]
    LossName = Literal[tuple(LOSSES)]
    KLName = Literal[tuple(KL_ESTIMATORS)]
    ToolFormat = Literal[TOOL_FORMATS]
    BackendName = Literal[("auto", *BACKENDS)]
    TrackerName = Literal[tuple(TRACKERS)]
    EngineName = Literal[("auto", *ENGINES)]
