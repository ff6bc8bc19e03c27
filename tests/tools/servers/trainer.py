"""A process with a pool, to be ended: `python trainer.py FOLDER [daemons]`. Prints a line once all are up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcpagent.tools.pool import ToolPool
from tests.tools.wild import DAEMONS, FAMILIES, stubborn


async def main(folder: Path, families: tuple[tuple[str, ...], ...]) -> None:
    async with ToolPool([stubborn(folder, *traits) for traits in families]):
        print("up", flush=True)
        await asyncio.sleep(1000)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), DAEMONS if "daemons" in sys.argv else FAMILIES))
