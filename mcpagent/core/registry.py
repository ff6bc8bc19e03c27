"""What can be chosen by name, one family each: the configuration's values, the command line's and the code's.

A member is its name and the dotted place of its implementation, which is imported when it is first used: this
module imports nothing heavy. Adding a member is the file that implements it and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal


class Family(dict[str, str]):
    """A table of where each member is implemented (`module:attribute`), by its name, in the order in which
    they are shown. `kind` says what they are, for errors."""

    def __init__(self, kind: str, places: Mapping[str, str]) -> None:
        super().__init__(places)
        self.kind = kind

    def load(self, name: str) -> Any:
        """Return the implementation of `name`. Raises LookupError, which lists the names, for any other."""
        if name not in self:
            raise LookupError(f"{name!r} is not a name of a {self.kind}; there are {', '.join(self)}")
        module, _, attribute = self[name].partition(":")
        return getattr(import_module(module), attribute)


_ADVANTAGES = "mcpagent.train.objective.advantages"
_LOSSES = "mcpagent.train.objective.loss"
_DIALECTS = "mcpagent.env.dialects"
_JUDGE = "mcpagent.reward.judge"

ADVANTAGES = Family(
    "advantage",  # grpo.advantage: instances of `Estimator`
    {
        "group": f"{_ADVANTAGES}:GROUP",  # against the mean of the group
        "rloo": f"{_ADVANTAGES}:RLOO",  # against the mean of the group's other attempts
        "reinforce++": f"{_ADVANTAGES}:REINFORCE",  # against the mean of the whole batch
        "gae": f"{_ADVANTAGES}:GAE",  # against a learned value of each turn
        "turn": f"{_ADVANTAGES}:TURN",  # each turn's own credit and the outcome
    },
)
LOSSES = Family(
    "loss",  # grpo.loss: instances of `Loss`
    {
        "grpo": f"{_LOSSES}:GRPO",  # clipped ratio; mean of the samples' means
        "dr_grpo": f"{_LOSSES}:DR_GRPO",  # clipped ratio; sums over a fixed length
        "dapo": f"{_LOSSES}:DAPO",  # clipped ratio; mean over all tokens
        "gspo": f"{_LOSSES}:GSPO",  # one clipped ratio a sample
        "cispo": f"{_LOSSES}:CISPO",  # bounded weights instead of clipped tokens
    },
)
KL_ESTIMATORS = Family(
    "KL estimator",  # grpo.kl_estimator: functions of the log ratios [N]
    {
        "k1": f"{_LOSSES}:k1",  # the log ratio; for the reward
        "k2": f"{_LOSSES}:k2",  # half its square; for the loss
        "k3": f"{_LOSSES}:k3",  # unbiased and never negative; for the loss
    },
)
DIALECTS = Family(
    "tool format",  # rollout.tool_format: instances of `Dialect`
    {
        "hermes": f"{_DIALECTS}.tagged:HERMES",  # JSON in <tool_call> tags
        "qwen3_coder": f"{_DIALECTS}.tagged:QWEN3_CODER",  # <function=NAME> with <parameter=NAME>
        "llama3": f"{_DIALECTS}.json_forms:LLAMA3",  # JSON with name and parameters
        "mistral": f"{_DIALECTS}.json_forms:MISTRAL",  # [TOOL_CALLS] and JSON
        "glm": f"{_DIALECTS}.tagged:GLM",  # <arg_key> and <arg_value> in <tool_call> tags
        "gemma4": f"{_DIALECTS}.families:GEMMA4",  # call:NAME{key:value} in <|tool_call> tags
        "pythonic": f"{_DIALECTS}.families:PYTHONIC",  # Python calls in <|tool_call_start|> tags
        "harmony": f"{_DIALECTS}.families:HARMONY",  # messages to=functions.NAME in channels
        "atem": f"{_DIALECTS}.families:ATEM",  # messages to=NAME with <atem:invoke>
        "json": f"{_DIALECTS}.json_forms:JSON",  # a JSON object
        "xml": f"{_DIALECTS}.tagged:XML",  # tags named as the tool
    },
)
TOOL_FORMATS = ("auto", *DIALECTS)  # auto: as the model's chat template writes calls
REWARD_METHODS = Family(
    "reward method",  # reward_spec.method of a record: graders of an ended episode
    {
        "rule": "mcpagent.reward.rule:grade_by_rule",  # deterministic, from calls, answer and end state
        "judge": f"{_JUDGE}:grade_by_judge",  # a model's verdict
        # The rule; of an answer without a type, a model's verdict on what the rule finds right.
        "rule+judge": f"{_JUDGE}:grade_by_rule_and_judge",
    },
)
BACKENDS = Family(
    "rollout backend",  # rollout.backend: policies
    {
        "hf": "mcpagent.policy.hf.policy:HFPolicy",  # transformers, in this process
        "vllm": "mcpagent.policy.vllm.engine:VllmPolicy",  # vLLM, in this process or on servers
    },
)
TRACKERS = Family(
    "tracker",  # tracking.backends, each the name of its package too: called with a `TrackedRun`
    {
        "wandb": "mcpagent.train.trackers:open_wandb",  # Weights & Biases
        "weave": "mcpagent.train.trackers:open_weave",  # episodes as traces
        "tensorboard": "mcpagent.train.trackers:open_tensorboard",  # event files
    },
)

# For annotations: pydantic sees the names, a type checker strings, since it cannot read a list.
if TYPE_CHECKING:
    AdvantageName = LossName = KLName = ToolFormat = BackendName = TrackerName = str
    RewardMethodName = str
else:
    AdvantageName = Literal[tuple(ADVANTAGES)]
    LossName = Literal[tuple(LOSSES)]
    KLName = Literal[tuple(KL_ESTIMATORS)]
    ToolFormat = Literal[TOOL_FORMATS]
    RewardMethodName = Literal[tuple(REWARD_METHODS)]
    BackendName = Literal[("auto", *BACKENDS)]
    TrackerName = Literal[tuple(TRACKERS)]
