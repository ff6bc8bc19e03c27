"""A harness of verifiers: the chat loop of its harness `null`, without a process of its own for each rollout.
A thousand episodes need no thousand interpreters then."""

# pyright: reportMissingImports=false

import sys
from pathlib import Path

from verifiers.v1.harnesses.null.harness import NullHarness
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import ProgramResult

PROGRAM = {"__name__": "chat_program"}
exec(CHAT_PROGRAM_SOURCE, PROGRAM)


class Here:
    """Stands for the runtime that the program is started in."""

    async def write(self, path, data):
        Path(path).write_bytes(data)

    async def prepare_uv_script(self, source, env, **_):
        return ["chat_program"]

    async def run_program(self, command, env):
        # Read before the program waits for anything, so that rollouts do not see each other's.
        sys.argv = command
        await PROGRAM["main"]()
        return ProgramResult(exit_code=0, stdout="", stderr="")


class InProcess(NullHarness):
    async def setup(self, runtime): ...

    async def launch(self, ctx, trace, runtime, *args, **kwargs):
        return await super().launch(ctx, trace, Here(), *args, **kwargs)


__all__ = ["InProcess"]
