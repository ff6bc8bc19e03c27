"""The words of mcpagent on one page, and the five protocols by which everything else meets its core.

A **Task** is one record of a dataset. A **ToolPool** is a started set of MCP servers. An **Episode** is one
attempt at a task: a **Policy** writes, the episode parses and makes the calls, until the last user turn ends.
What happened is a **Trajectory** of **Turns**, each a **Completion** with its tokens and the calls with their
results. Its **RewardTerms** say what it is worth; attempts at one task are a **TrajectoryGroup**, whose
rewards become advantages, and a trajectory becomes a **TrainSample**. `docs/episode.md` follows one from task
to gradient.

Whoever brings something of their own implements one of the protocols: `TaskSource`, `ToolProvider`, `Policy`,
`Reward`, `Engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mcpagent.core.records import Metric as Metric
from mcpagent.core.tasks import Task as Task
from mcpagent.core.tools import FailureKind as FailureKind
from mcpagent.core.tools import ToolCall as ToolCall
from mcpagent.core.tools import ToolResult as ToolResult
from mcpagent.core.tools import ToolSpec as ToolSpec
from mcpagent.core.trajectory import Completion as Completion
from mcpagent.core.trajectory import RewardTerm as RewardTerm
from mcpagent.core.trajectory import StopReason as StopReason
from mcpagent.core.trajectory import Trajectory as Trajectory
from mcpagent.core.trajectory import TrajectoryGroup as TrajectoryGroup
from mcpagent.core.trajectory import Turn as Turn
from mcpagent.engines import Engine as Engine
from mcpagent.env.episode import Episode as Episode
from mcpagent.policy.contract import CompletionRequest as CompletionRequest
from mcpagent.policy.contract import Policy as Policy
from mcpagent.policy.contract import Sampling as Sampling
from mcpagent.reward.record import EpisodeRecord as EpisodeRecord
from mcpagent.reward.record import Reward as Reward
from mcpagent.tools.contract import ToolProvider as ToolProvider
from mcpagent.tools.contract import ToolSession as ToolSession
from mcpagent.tools.pool import ToolPool as ToolPool

if TYPE_CHECKING:
    from mcpagent.train.batch.samples import TrainSample as TrainSample  # needs torch


class TaskSource(Protocol):
    """Tasks by index, any number of them: a file (`storage.datasets.TaskFile`), or a list."""

    def __len__(self) -> int:
        """Return the number of tasks."""
        ...

    def __getitem__(self, index: int, /) -> Task:
        """Return the task at `index`, counted from 0."""
        ...
