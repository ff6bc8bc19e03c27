"""Sampling of rows: frequencies, truncation, and which logprob is reported."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mcpagent.policy.contract import Sampling
from mcpagent.policy.sampling import sample_rows
from tests.policy.oracle import truncated

# logits ln(p): p = 0.5, 0.3, 0.15, 0.05
LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def draw(logits: torch.Tensor, uniform: float, **sampling: float) -> tuple[int, float]:
    tokens, logprobs = sample_rows(logits[None], [uniform], [Sampling(**sampling)])
    return int(tokens[0]), float(logprobs[0])


def test_frequencies_follow_the_distribution() -> None:
    n = 20_000
    uniforms = np.random.default_rng(0).random(n, dtype=np.float32).tolist()
    tokens, _ = sample_rows(LOGITS.expand(n, -1), uniforms, [Sampling()] * n)
    expected = np.array([0.5, 0.3, 0.15, 0.05]) * n
    chi_square = float(((np.bincount(tokens.numpy(), minlength=4) - expected) ** 2 / expected).sum())
    # 16.3 is the 0.1% quantile from above of chi-square with 3 degrees of freedom.
    assert chi_square < 16.3


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.96, 3), (1 - 2**-24, 3)]
)
def test_a_draw_picks_the_token_whose_share_of_the_unit_interval_holds_it(uniform: float, token: int) -> None:
    assert draw(LOGITS, uniform) == (token, pytest.approx(float(LOGITS[token]), abs=1e-6))


def test_the_largest_possible_draw_never_lands_on_an_impossible_token() -> None:
    # In float32, 41 equal probabilities add up to 1 - 2**-24, and the last token has none.
    logits = torch.tensor([0.0] * 41 + [-math.inf])
    assert float(torch.softmax(logits, -1).cumsum(-1)[-1]) < 1.0
    assert draw(logits, 1 - 2**-24) == (40, pytest.approx(math.log(1 / 41), abs=1e-6))


def test_temperature_reports_the_logprob_of_the_distribution_that_was_sampled() -> None:
    # At temperature 0.5 probabilities are squared and renormalised: 0.25, 0.09, 0.0225, 0.0025 over 0.365.
    assert draw(LOGITS, 0.7, temperature=0.5) == (1, pytest.approx(math.log(0.09 / 0.365), abs=1e-6))


def test_top_p_keeps_the_token_that_crosses_the_threshold() -> None:
    # 0.5 < 0.6, so 0.3 is kept too, and nothing else.
    assert draw(LOGITS, 0.999, top_p=0.6) == (1, pytest.approx(math.log(0.3 / 0.8), abs=1e-6))
    assert draw(LOGITS, 0.999, top_p=0.4) == (0, pytest.approx(0.0, abs=1e-6))


def test_a_greedy_row_among_sampled_ones_takes_its_likeliest_token() -> None:
    tokens, logprobs = sample_rows(
        LOGITS.expand(2, -1), [0.99, 0.99], [Sampling(temperature=0.0), Sampling()]
    )
    assert tokens.tolist() == [0, 3]
    assert logprobs.tolist() == pytest.approx([math.log(0.5), math.log(0.05)], abs=1e-6)


@settings(derandomize=True)
@given(
    # In steps of a quarter: logits that differ by next to nothing have equal probabilities, and no order.
    logits=arrays.arrays(np.float32, 12, elements=st.integers(-24, 24).map(lambda n: n / 4), unique=True),
    uniform=st.floats(0, 1 - 2**-24, width=32),
    temperature=st.sampled_from((0.5, 1.0, 1.7)),
    top_p=st.sampled_from((0.1, 0.5, 0.9, 1.0)),
)
def test_any_settings_report_the_logprob_of_a_possible_token(
    logits: np.ndarray, uniform: float, temperature: float, top_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p)
    tokens, logprobs = sample_rows(torch.from_numpy(logits)[None], [uniform], [sampling])
    probabilities = np.exp(logits.astype(np.float64) / temperature)
    expected = truncated(probabilities / probabilities.sum(), sampling)
    token = int(tokens[0])
    assert float(logprobs[0]) == pytest.approx(math.log(expected[token]), abs=1e-4)
    # The draw lies in the token's own interval, up to rounding.
    assert expected[:token].sum() - 1e-5 <= uniform <= expected[: token + 1].sum() + 1e-5
