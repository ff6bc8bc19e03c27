"""A process with a pool, to be killed: `python trainer.py FOLDER`. Prints a line once all servers are up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcpagent.tools.pool import ToolPool
from tests.tools.wild import FAMILIES, stubborn


async def main(folder: Path) -> None:
    async with ToolPool([stubborn(folder, *traits) for traits in FAMILIES]):
        print("up", flush=True)
        await asyncio.sleep(1000)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
