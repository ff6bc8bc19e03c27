"""What an update says of how far it moved the policy."""

from __future__ import annotations

from mcpagent.train.objective.advantages import CreditSettings, GradedAttempt, GradedBatch, GradedGroup
from mcpagent.train.update import UpdateSettings, UpdateStats, update_policy
from tests.train.world import make_learner, on_policy, some_samples, tiny_model


def an_update(*, learning_rate: float, epochs: int) -> UpdateStats:
    model = tiny_model()
    samples = on_policy(model, some_samples(4))
    groups = tuple(
        GradedGroup(
            group_id=str(place),
            attempts=tuple(
                GradedAttempt(reward=float(i % 2), sample=sample, turn_rewards_K=(0.0, 0.0))
                for i, sample in enumerate(samples[2 * place : 2 * place + 2])
            ),
        )
        for place in range(2)
    )
    return update_policy(
        make_learner(model, learning_rate=learning_rate),
        GradedBatch(groups=groups, settings=CreditSettings()),
        settings=UpdateSettings(use_reference=False, epochs=epochs, minibatches=2),
        first_optimizer_step=1,
        seed=0,
    )


def test_an_update_of_one_step_on_its_own_samples_has_not_moved() -> None:
    stats = an_update(learning_rate=0.05, epochs=1)
    summary = stats.summary()
    assert stats.optimizer_steps == 2
    assert summary["approx_kl"] > 0.0, "the second minibatch sees the first one's step"
