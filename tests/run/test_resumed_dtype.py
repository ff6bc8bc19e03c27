"""A run goes on in the dtype that it began in."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.config.loader import dump_config
from mcpagent.errors import UserError
from mcpagent.run.lifecycle import RunPlace, begun_dtype, open_run
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.learner.processes import Processes
from tests.run.world import config


def begun(folder: Path, dtype: str) -> RunFolder:
    settings = config("device=cpu", f"model.dtype={dtype}")
    return RunFolder.create(folder, config_yaml=dump_config(settings), manifest={})


def resume(run: RunFolder, dtype: str) -> None:
    place = RunPlace(
        folder=run.path,
        session=None,
        resume=True,
        manifest={},
        beside=(),
        ledger=None,
        ledger_start=0,
        processes=Processes(),
    )
    open_run(config("device=cpu", f"model.dtype={dtype}"), place, lambda _: {}, total_steps=1)


def test_auto_of_a_run_from_before_it_was_settled_is_float32_on_every_cpu(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "auto")
    assert begun_dtype(run.path, "cpu") == "float32"
    resume(run, "float32")
    with pytest.raises(UserError, match=r"other settings of model\.dtype"):
        resume(run, "bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_settled_dtype_is_the_one_that_a_resumed_run_is_held_to(dtype: str, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", dtype)
    assert begun_dtype(run.path, "cpu") == dtype
    resume(run, dtype)
