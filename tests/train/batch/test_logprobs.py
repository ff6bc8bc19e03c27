"""The selected log-softmax against torch's own, values and gradients, in double precision."""

from __future__ import annotations

import pytest
import torch

from mcpagent.train.batch.scoring import selected_logprobs


def _drawn(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, width, generator=generator, dtype=torch.float64) * 5
    return logits, torch.randint(0, width, (rows,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_values_and_gradients_equal_log_softmax(temperature: float, entropy_gradient: bool) -> None:
    logits, targets = _drawn(37, 1 << 13)  # several blocks of rows, the last one short
    weights = torch.linspace(-1, 2, 37, dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    full = (leaf / temperature).log_softmax(-1)
    entropy = torch.distributions.Categorical(logits=leaf / temperature).entropy()
    chosen = full.gather(1, targets[:, None])[:, 0]
    ((chosen + (0.3 * entropy if entropy_gradient else 0)) * weights).sum().backward()
    own = logits.clone().requires_grad_()
    ours, our_entropy = selected_logprobs(
        own * 1.0, targets, temperature=temperature, entropy_gradient=entropy_gradient
    )
    assert our_entropy.requires_grad == entropy_gradient
    ((ours + (0.3 * our_entropy if entropy_gradient else 0)) * weights).sum().backward()
    assert torch.allclose(ours, chosen, rtol=0, atol=1e-12)
    assert torch.allclose(our_entropy, entropy, rtol=0, atol=1e-11)
    assert own.grad is not None and leaf.grad is not None
    assert torch.allclose(own.grad, leaf.grad, rtol=0, atol=1e-12)


def test_tokens_that_cannot_occur_take_nothing_from_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -1e30]], dtype=torch.float64, requires_grad=True)
    chosen, entropy = selected_logprobs(logits * 1.0, torch.tensor([0]), entropy_gradient=True)
    # Two tokens of probability one half: ln 2 each way.
    assert float(chosen.detach()) == pytest.approx(-0.6931471805599453)
    assert float(entropy.detach()) == pytest.approx(0.6931471805599453)
    (chosen + entropy).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
