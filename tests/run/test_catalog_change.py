from __future__ import annotations

import pytest

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.run.episodes import catalog_note
from mcpagent.tools.setup import open_tools
from tests.run.world import config, samples


def _made_with(catalog: str) -> list[Task]:
    """Tasks that say with which tools they were made."""
    return [
        task.model_copy(update={"extra_info": {**task.extra_info, "catalog_hash": catalog}})
        for task in samples(count=2)
    ]


def test_tools_that_changed_since_the_dataset_are_refused_where_the_user_asks_for_it() -> None:
    with open_tools(config().tools) as tools:
        same = _made_with(tools.pool.catalog_hash)
        assert catalog_note(same, tools.pool, on_change="refuse") is None
        with pytest.raises(UserError, match="tools have changed since the dataset was made") as error:
            catalog_note(_made_with("0123456789abcdef"), tools.pool, on_change="refuse")
    assert error.value.where == "tools.on_catalog_change"
