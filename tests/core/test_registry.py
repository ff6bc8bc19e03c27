"""What can be chosen by name: one list, which the schema, the command line and the code share."""

from __future__ import annotations

from typing import get_args

import pytest

from mcpagent.config.schema import GrpoConfig, RolloutConfig
from mcpagent.config.sections import TrackingConfig
from mcpagent.core import registry
from mcpagent.core.registry import Family
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.parsing import DIALECT_OF
from mcpagent.train.objective.advantages import Estimator
from mcpagent.train.objective.loss import Loss

FAMILIES = {name: value for name, value in vars(registry).items() if isinstance(value, Family)}
# What the schema takes: the annotation, in which a tuple of names is the innermost.
CHOICES = {
    "ADVANTAGES": GrpoConfig.model_fields["advantage"].annotation,
    "LOSSES": GrpoConfig.model_fields["loss"].annotation,
    "KL_ESTIMATORS": GrpoConfig.model_fields["kl_estimator"].annotation,
    "DIALECTS": RolloutConfig.model_fields["tool_format"].annotation,
    "BACKENDS": RolloutConfig.model_fields["backend"].annotation,
    "TRACKERS": get_args(TrackingConfig.model_fields["backends"].annotation)[0],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_implementation_is_where_the_registry_says(family: str) -> None:
    assert len(FAMILIES[family]) > 0
    for name in FAMILIES[family]:
        assert FAMILIES[family].load(name) is not None


def test_members_are_of_one_kind() -> None:
    kinds = {"ADVANTAGES": Estimator, "LOSSES": Loss, "DIALECTS": Dialect}
    for family, kind in kinds.items():
        assert all(isinstance(FAMILIES[family].load(name), kind) for name in FAMILIES[family])


@pytest.mark.parametrize("family", CHOICES)
def test_the_configuration_takes_the_names_of_the_registry_and_no_others(family: str) -> None:
    names = set(get_args(CHOICES[family]))
    assert names - {"auto"} == set(FAMILIES[family])


def test_a_dialect_has_the_name_that_it_is_chosen_by() -> None:
    assert tuple(DIALECT_OF) == registry.TOOL_FORMATS
    assert all(dialect.name == name for name, dialect in DIALECT_OF.items())


def test_a_name_that_no_member_has_is_an_error_that_names_them() -> None:
    with pytest.raises(
        LookupError, match=r"'ppo' is not .* a loss; there are grpo, dr_grpo, dapo, gspo, cispo"
    ):
        registry.LOSSES.load("ppo")
