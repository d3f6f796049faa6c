"""Stability studies: the theory's boundary, the detector, the batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.special import softmax

from experiments.stability.batch import run_batch
from experiments.stability.boundary import CASES, boundaries
from experiments.stability.measures import NAMES, is_collapsed, measures, separation
from experiments.stability.mixture import Setting, build, mixture
from softvq import ConstantTemperature, DDCLCodebook, Schedule, two_timescale_groups


def codebook_at(prototypes: torch.Tensor, temperature: float) -> DDCLCodebook:
    controller = ConstantTemperature(Schedule(temperature))
    codebook = DDCLCodebook(prototypes.shape[1], len(prototypes), temperature=controller)
    codebook = codebook.to(prototypes.dtype)
    codebook.codebook.data.copy_(prototypes)
    return codebook


# The boundary.


def test_collapse_begins_to_attract_within_five_percent_of_the_theory(monkeypatch):
    monkeypatch.setattr("experiments.stability.boundary.BRACKET", (0.7, 1.3))
    predicted = {"L_q through q": 4.0, "L_OLS + 2 V": 2.0, "soft EM (q held)": 2.0}
    cases = [case for case in CASES if case.name in predicted]
    # Another prediction would be found wrong.
    *found, wrong = boundaries([*cases, replace(CASES[0], factor=5.0)], seeds=[3], rounds=3)
    assert {one["name"]: one["predicted"] for one in found} == predicted
    for one in found:
        assert one["measured_over_predicted"] == pytest.approx([1], abs=0.05)
    assert wrong["measured_over_predicted"] == pytest.approx([4 / 5], rel=0.05)


@pytest.mark.parametrize("em", [False, True])
def test_a_spread_codebook_on_frozen_latents_collapses_above_and_only_above(em):
    critical = 0.5 if em else 1.0
    runs = [Setting(0, critical * factor, em=em, rate=4.0) for factor in (0.8, 1.25)]
    below, above = run_batch(runs, (0, 200))
    assert (below[-1]["collapsed"], above[-1]["collapsed"]) == (False, True)
    assert not above[0]["collapsed"]
    assert below[-1]["temperature_ratio"] == pytest.approx(0.8, rel=1e-3)


# The detector.


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 9), st.integers(1, 5), st.floats(0.1, 10), st.integers(0, 99))
def test_separation_is_scipys_pairwise_distance_over_the_deviation(count, dim, largest, seed):
    points = np.random.default_rng(seed).normal(size=(count, dim))
    expected = pdist(points) / math.sqrt(largest)
    found = separation(torch.from_numpy(points), largest)
    assert found[:2] == pytest.approx((expected.min(), expected.mean()), abs=1e-8)


def test_distinct_prototypes_are_counted_once():
    points = torch.tensor([[0.0], [0.01], [1.0], [1.02], [0.04], [5.0]])
    assert [separation(points, largest)[2] for largest in (1.0, 200**2, 1e-6)] == [3, 1, 6]


def test_hand_made_prototypes_are_judged_as_one_would():
    assert [is_collapsed(a, 0.5) for a in (0.0499, 0.05)] == [True, False]
    assert [is_collapsed(1.0, e) for e in (0.989, 0.99)] == [False, True]
    z = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.2], [1.0, 0.2]], dtype=torch.float64)
    mean = z.mean(dim=0)
    cases = {
        "all at the mean": (mean.expand(3, 2) + 0.01 * torch.eye(3, 2), True),
        "all at one cluster": (z[:1].expand(3, 2) + 0.01 * torch.eye(3, 2), True),
        "one on each cluster": (torch.stack([z[0], z[1], z[1]]), False),
        # Far apart, but every latent gets the same mix of them.
        "both far off, on one axis across": (mean + torch.tensor([[0.0, 9.0], [0.0, -9.0]]), True),
    }
    for name, (prototypes, collapsed) in cases.items():
        codebook = codebook_at(prototypes, 0.1)
        assert measures(codebook, codebook(z))["collapsed"] is collapsed, name


def test_measures_are_those_of_numpy():
    generator = torch.Generator().manual_seed(1)
    z, p = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (50, 5))
    codebook = codebook_at(p, 0.7)
    codebook._track(torch.eye(3, dtype=torch.float64) * 2.0, decay=0.0)  # another than z's
    figures = measures(codebook, codebook(z))
    zn, pn = z.numpy(), p.numpy()
    d = ((zn[:, None] - pn) ** 2).sum(-1)
    q = softmax(-d / 0.7, axis=1)
    covariance = np.cov(zn.T, bias=True)
    largest, total = np.linalg.eigvalsh(covariance)[-1], np.trace(covariance)
    usage = q.mean(0)
    expected = {
        "temperature_ratio": 0.7 / (2 * largest), "utilization": len(set(d.argmin(1))) / 5,
        "soft_perplexity": np.exp(-(usage * np.log(usage)).sum()),
        "codes_per_token": np.exp(-(q * np.log(q)).sum(1).mean()),
        "argmax_error": d.min(1).mean() / total, "largest_variance": largest,
        "soft_error": ((zn - q @ pn) ** 2).sum(1).mean() / total,
        "separation_mean": pdist(pn).mean() / math.sqrt(largest),
    }  # fmt: skip
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value, rel=1e-5), name
    assert figures["identity_residual"] < 1e-6
    assert tuple(figures) == NAMES


def test_equal_latents_are_a_collapse_and_no_figures_a_divergence():
    codebook = codebook_at(torch.eye(3, 2), 1.0)
    equal = measures(codebook, codebook(torch.full((4, 2), 1e6)))
    assert equal == dict.fromkeys(NAMES) | {"collapsed": True}
    codebook.codebook.data[0] = float("nan")
    assert measures(codebook, codebook(torch.randn(4, 2))) == dict.fromkeys(NAMES)


# The batch.


def one_by_one(setting: Setting, steps: int) -> dict[str, float | int | bool | None]:
    """The same run with torch's optimiser and nothing batched."""
    model, x = build(setting, torch.float64)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = two_timescale_groups(model, setting.rates[0], setting.epsilon) if trained else []
    optimizer = torch.optim.SGD(groups) if trained else None
    for _ in range(steps):
        out, error = model(x)
        if optimizer:
            loss = out.loss if setting.term == "loss" else out.losses[setting.term]
            optimizer.zero_grad()
            (loss + setting.reconstruction * error).backward()
            optimizer.step()
        model.codebook.after_step(out)
    return measures(model.codebook, model(x)[0])


def test_runs_side_by_side_are_those_runs():
    runs = [
        Setting(0, 0.3, epsilon=0.3, learns=True),
        Setting(1, 0.6, epsilon=3.0, learns=True, init="near"),
        Setting(0, 0.3, learns=True, reconstruction=1.0),
        Setting(0, 0.3, learns=True, reconstruction=1.0, control="follows"),
        Setting(1, 0.3, learns=True, control="follows", epsilon=1.0),
        Setting(0, 0.3, em=True),
        Setting(1, 0.2, em=True, init="kmeans"),
        Setting(0, 0.4, variance_weight=2.0, commitment=0.5),
        Setting(0, 0.4, term="variance"),
        Setting(2, 0.4, term="loss_ols", rate=3.0),
    ]
    for setting, history in zip(runs, run_batch(runs, (0, 7), torch.float64), strict=True):
        assert [record.pop("step") for record in history] == [0, 7]
        assert history[-1] == pytest.approx(one_by_one(setting, 7), rel=1e-6, abs=1e-9), setting
        assert history[0]["separation_mean"] != history[1]["separation_mean"]


def test_a_following_temperature_is_told_from_a_fixed_one():
    base = {"seed": 0, "ratio": 0.9, "epsilon": 1.0, "learns": True}
    fixed, follows = run_batch([Setting(**base), Setting(**base, control="follows")], (0, 100))
    assert fixed[0]["temperature_ratio"] == pytest.approx(0.9, rel=1e-4)
    assert fixed[0]["largest_variance"] / fixed[1]["largest_variance"] == pytest.approx(
        fixed[1]["temperature_ratio"] / 0.9, rel=1e-3
    )
    # The encoder rescaled its latents.
    assert not 0.6 < fixed[1]["temperature_ratio"] / 0.9 < 1.6
    assert follows[1]["temperature_ratio"] == pytest.approx(0.9, rel=0.15)


def test_starts_are_what_they_are_called():
    for init, low, high in (("near", 0.001, 0.05), ("spread", 0.5, 3), ("kmeans", 0.5, 3)):
        model, x = build(Setting(0, 0.3, init=init), torch.float64)
        apart = measures(model.codebook, model(x)[0])["separation_mean"]
        assert low < apart < high, init
    assert not torch.equal(mixture(0), mixture(1))


def test_a_run_that_diverges_is_called_so_and_spoils_no_other():
    wild = Setting(0, 0.3, learns=True, reconstruction=1.0, rate=1e6)
    tame = Setting(0, 0.3, learns=True, reconstruction=1.0)
    diverged, alone = run_batch([wild, tame], (0, 30))
    assert diverged[-1]["collapsed"] is None
    assert alone == run_batch([tame], (0, 30))[0]
    follows = [Setting(0, 0.3, learns=True, rate=rate, control="follows") for rate in (1e20, 1)]
    assert run_batch(follows, (0, 5))[1][-1]["collapsed"] is False
