"""Which engine a run gets, here where SkyRL cannot run."""

from __future__ import annotations

import pytest

from mcpagent.config.schema import TrainConfig
from mcpagent.engines import choose
from mcpagent.engines.skyrl.engine import ENGINE
from mcpagent.errors import UserError

CANNOT = ENGINE.why_not()
pytestmark = pytest.mark.skipif(CANNOT is None, reason="SkyRL can run here")


def test_a_named_engine_never_gives_way() -> None:
    with pytest.raises(UserError, match="SkyRL") as error:
        choose(TrainConfig(engine="skyrl"))
    assert error.value.remedy
    assert choose(TrainConfig(engine="skyrl"), is_dry_run=True) is ENGINE
