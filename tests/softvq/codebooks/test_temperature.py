import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import entr, softmax
from sklearn.datasets import load_digits

from softvq import (
    CodesPerToken,
    ConstantTemperature,
    CriticalFraction,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
)
from softvq.codebooks.temperature import latent_spread, temperature_for


@pytest.fixture(scope="module")
def digits():
    """Real latents: the leading principal components of scikit-learn's digit images."""
    images = load_digits().data
    images = images - images.mean(axis=0)
    _, _, axes = np.linalg.svd(images, full_matrices=False)
    return torch.tensor(images @ axes[:8].T, dtype=torch.float32)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 50), st.integers(0, 50), st.data()
)
def test_schedule_is_geometric_between_hold_and_end(start, end, length, hold, data):
    schedule = Schedule(start, end, steps=hold + length, hold=hold)
    assert schedule(0) == pytest.approx(start)
    assert schedule(hold) == pytest.approx(start)
    assert schedule(hold + length) == end
    assert schedule(hold + length + data.draw(st.integers(0, 1000))) == end
    step = data.draw(st.integers(0, length - 1))
    ratio = schedule(hold + step + 1) / schedule(hold + step)
    assert ratio == pytest.approx((end / start) ** (1 / length), rel=1e-9)


def test_schedule_without_an_end_is_constant():
    assert [Schedule(3.0)(step) for step in (0, 1, 10**6)] == [3.0] * 3
    assert Schedule(3.0, 1.0)(0) == 1.0
    assert Schedule(4.0, 1.0, steps=2)(1) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Schedule(0.0), r"positive and finite, got 0\.0"),
        (lambda: Schedule(-1.0, 2.0), r"positive and finite, got -1\.0 to 2\.0"),
        (lambda: Schedule(1.0, 0.0), r"positive and finite, got 1\.0 to 0\.0"),
        (lambda: Schedule(math.inf), "positive and finite, got inf"),
        (lambda: Schedule(math.nan), "positive and finite, got nan"),
        (lambda: Schedule(1.0, 2.0, 5, 6), r"hold must lie in \[0, steps=5\], got 6"),
        (lambda: Schedule(1.0, 2.0, 5, -1), r"hold must lie in \[0, steps=5\], got -1"),
        (lambda: CodesPerToken(Schedule(0.5)), r"fewer than 1.*0\.5 to 0\.5"),
        (lambda: CodesPerToken(Schedule(2.0, 0.9, 5)), r"2\.0 to 0\.9"),
        (lambda: CodesPerToken(Schedule(2.0), gain=0.0), r"gain.*0\.0"),
        (lambda: CodesPerToken(Schedule(2.0), gain=1.5), r"gain.*1\.5"),
    ],
)
def test_wrong_schedules_and_targets(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_open_loop_controllers_follow_their_schedule():
    schedule = Schedule(4.0, 1.0, steps=2)
    z, p = torch.zeros(4, 2), torch.zeros(3, 2)
    constant, fraction = ConstantTemperature(schedule), CriticalFraction(schedule)
    assert constant.first(z, p, 7.0) == 4.0
    assert fraction.first(z, p, 7.0) == 28.0
    for step, value in enumerate([4.0, 2.0, 1.0, 1.0]):
        assert constant.next(step, 99.0, 5.0, 7.0) == pytest.approx(value)
        assert fraction.next(step, 99.0, 5.0, 7.0) == pytest.approx(7.0 * value)


@given(st.floats(1.01, 100), st.floats(1e-6, 1e6), st.floats(0.01, 1))
def test_codes_per_token_rests_at_its_target(target, temperature, gain):
    controller = CodesPerToken(Schedule(target), gain=gain)
    rested = controller.next(0, temperature, target, 10 * temperature)
    assert rested == pytest.approx(temperature)


@given(st.floats(1.01, 100), st.floats(1, 100), st.floats(0.01, 1))
def test_codes_per_token_moves_towards_its_target(target, measured, gain):
    controller = CodesPerToken(Schedule(target), gain=gain)
    moved = math.log(controller.next(0, 1.0, measured, critical_temperature=1e9))
    gap = math.log(target) - math.log(measured)
    assert moved * gap >= 0
    assert abs(moved) <= 0.5 + 1e-12
    if measured > 1.01:
        wanted = gain * math.log(math.log(target) / math.log(measured))
        assert moved == pytest.approx(max(-0.5, min(0.5, wanted)))


def test_codes_per_token_stays_under_its_ceiling():
    controller = CodesPerToken(Schedule(8.0), ceiling=0.5)
    assert controller.next(0, 100.0, 2.0, critical_temperature=4.0) == 2.0
    assert controller.next(0, 100.0, 8.0, critical_temperature=4.0) == 2.0
    # A target of exactly one code, which no temperature has, cools by bounded steps for ever.
    hard = CodesPerToken(Schedule(1.0))
    assert hard.next(0, 1.0, 1.0, 4.0) == pytest.approx(math.exp(0.5))
    assert hard.next(0, 1.0, math.exp(1e-3), 4.0) == pytest.approx(1.0)


@pytest.mark.parametrize("start", [1e-3, 1.0, 30.0])
def test_codes_per_token_converges_on_real_latents(digits, start):
    schedule = Schedule(4.0, 1.3, steps=60, hold=40)
    codebook = DDCLCodebook(8, 32, temperature=CodesPerToken(schedule))
    codebook.initialize(digits)
    codebook.temperature.mul_(start)
    batches = digits[:1792].view(7, 256, 8)
    for step in range(1, 131):
        codebook.after_step(codebook(batches[step % 7]))
        if step == 40:
            assert codebook(digits).codes_per_token.item() == pytest.approx(4.0, rel=0.05)
        assert codebook.temperature_ratio.item() <= 0.9 + 1e-6
    assert codebook(digits).codes_per_token.item() == pytest.approx(1.3, rel=0.03)


def test_codes_per_token_follows_the_scale_of_the_latents(digits):
    codebook = DDCLCodebook(8, 32, temperature=CodesPerToken(Schedule(2.0)), pull=0.0)
    codebook.initialize(digits)
    before = codebook.temperature.item()
    for _ in range(80):
        codebook.codebook.data.mul_(0.97)
        digits = digits * 0.97
        codebook.after_step(codebook(digits))
    for _ in range(40):
        codebook.after_step(codebook(digits))
    assert codebook(digits).codes_per_token.item() == pytest.approx(2.0, rel=0.03)
    assert codebook.temperature.item() == pytest.approx(before * 0.97**160, rel=0.1)


def test_an_unreachable_target_ends_at_the_ceiling(digits):
    codebook = DDCLCodebook(8, 4, temperature=CodesPerToken(Schedule(4.0), ceiling=0.7))
    codebook.initialize(digits)
    for _ in range(5):
        codebook.after_step(codebook(digits))
    assert codebook.temperature_ratio.item() == pytest.approx(0.7)
    assert codebook(digits).codes_per_token < 4


def entropy_codes(z, p, temperature):
    q = softmax(-((z[:, None] - p) ** 2).sum(axis=2) / temperature, axis=1)
    return math.exp(entr(q).sum(axis=1).mean())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31), st.integers(2, 12), st.floats(0.02, 0.9), st.integers(-3, 3))
def test_temperature_for_matches_a_root_finder(seed, size, share, exponent):
    rng = np.random.default_rng(seed)
    z, p = (10.0**exponent * rng.normal(size=(rows, 3)) for rows in (20, size))
    target = 1 + share * (size - 1)
    expected = brentq(
        lambda log_t: entropy_codes(z, p, math.exp(log_t)) - target,
        math.log(3 * 100.0**exponent) - 12,
        math.log(3 * 100.0**exponent) + 8,
        xtol=1e-6,
    )
    found = temperature_for(target, torch.tensor(z), torch.tensor(p))
    assert math.log(found) == pytest.approx(expected, abs=1e-3)


def test_latent_spread():
    z = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    p = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
    assert latent_spread(z, p) == pytest.approx(((0 + 1) + (4 + 9)) / 2)
    assert latent_spread(p[:1], p[:1]) > 0


@pytest.mark.parametrize("kind", [ConstantTemperature, CriticalFraction, CodesPerToken])
def test_a_number_is_no_schedule(kind):
    with pytest.raises(TypeError, match=r"follows a schedule, as Schedule\(2\.0\), got 0\.5"):
        kind(0.5)


@pytest.mark.parametrize("kind", [DDCLCodebook, DDCLEMCodebook])
class TestWhatATemperatureMayBe:
    def test_a_number_is_codes_per_token(self, kind):
        assert kind(8, 16, temperature=2).controller == CodesPerToken(Schedule(2.0))

    @pytest.mark.parametrize("temperature", [0.5, 0, -1, math.nan])
    def test_a_token_has_at_least_one_code(self, kind, temperature):
        with pytest.raises(ValueError, match=r"positive|fewer than 1"):
            kind(8, 16, temperature=temperature)

    @pytest.mark.parametrize("temperature", [Schedule(0.5), True, "2", None])
    def test_nothing_else_is_a_controller(self, kind, temperature):
        with pytest.raises(TypeError, match=r"must be a number of codes per token, or a contr"):
            kind(8, 16, temperature=temperature)
