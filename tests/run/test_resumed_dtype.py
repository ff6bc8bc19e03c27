"""A run goes on in the dtype that it began in."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcpagent.config.loader import dump_config
from mcpagent.errors import UserError
from mcpagent.run.lifecycle import check_same
from mcpagent.storage.run_folder import RunFolder
from tests.run.world import config


@pytest.mark.parametrize(("dtype", "other"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_the_dtype_of_a_run_is_the_one_that_it_is_held_to(dtype: str, other: str, tmp_path: Path) -> None:
    settings = config("device=cpu", f"model.dtype={dtype}")
    run = RunFolder.create(tmp_path / "run", config_yaml=dump_config(settings), manifest={})
    check_same(settings, run)
    with pytest.raises(UserError, match=r"other settings of model\.dtype"):
        check_same(config("device=cpu", f"model.dtype={other}"), run)
