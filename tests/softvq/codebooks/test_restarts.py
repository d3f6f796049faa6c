"""Restarts of starved prototypes, and the options that every kind of codebook checks."""

import pytest
import torch

from softvq import (
    ConstantTemperature,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    SoftCodebook,
    VQCodebook,
    VQEMACodebook,
)

KINDS = [DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook]
EVERY = pytest.mark.parametrize("kind", KINDS)
CORNERS = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])


def with_prototypes(kind, prototypes, **options):
    if issubclass(kind, SoftCodebook):
        options["temperature"] = ConstantTemperature(Schedule(0.5))
    codebook = kind(prototypes.shape[1], len(prototypes), decay=0.5, **options)
    codebook.codebook.data.copy_(prototypes)
    if kind is VQEMACodebook:
        codebook.embed_sum.copy_(prototypes)
    return codebook


@EVERY
def test_starved_prototypes_restart_on_latents_with_all_their_state(kind):
    torch.manual_seed(0)
    # Usage of those that nobody chooses halves with each step: from 1/6 below a tenth of the mean
    # at the fourth, or from one token below a twentieth at the second.
    soft = issubclass(kind, SoftCodebook)
    threshold, when = (0.1, 3) if soft else (0.05, 1)
    prototypes = torch.cat([CORNERS, torch.full((2, 2), 100.0)])
    options = {"pull": 0.0} if kind is DDCLCodebook else {}
    codebook = with_prototypes(kind, prototypes, restart_threshold=threshold, **options)
    z = CORNERS.repeat(16, 1) + torch.randn(64, 2)
    restarts = []
    for step in range(30):
        out = codebook(z)
        usage = codebook.running_usage.lerp(out.usage * (1 if soft else 64), 0.5)
        starved = usage < threshold * usage.mean()
        kept = codebook.codebook.detach()[~starved]
        codebook.after_step(out)
        if isinstance(codebook, DDCLCodebook):  # here without a pull
            assert torch.equal(codebook.codebook.detach()[~starved], kept)
        if restarts:
            assert torch.bincount(out.indices, minlength=6).min() > 0
        if starved.any():
            restarts.append((step, starved.tolist()))
            moved = codebook.codebook.detach()[starved]
            assert all((z == row).all(dim=1).any() for row in moved)
            assert len(moved.unique(dim=0)) == 2
            usage[starved] = 2 * threshold * usage.mean()
        torch.testing.assert_close(codebook.running_usage, usage, rtol=1e-5, atol=1e-7)
        if kind is VQEMACodebook:
            torch.testing.assert_close(codebook.embed_sum, codebook.codebook * usage[:, None])
    assert restarts == [(when, [False] * 4 + [True] * 2)]


@EVERY
def test_no_restart_unless_asked(kind):
    prototypes = torch.tensor([[0.0, 0.0], [100.0, 100.0]])
    codebook = with_prototypes(kind, prototypes, restart_threshold=0.0)
    for _ in range(20):
        codebook.after_step(codebook(torch.randn(8, 2)))
    torch.testing.assert_close(codebook.codebook.detach()[1], prototypes[1])


@EVERY
def test_restarts_follow_their_seed(kind):
    def run(seed):
        torch.manual_seed(0)
        prototypes = torch.cat([torch.zeros(1, 2), torch.full((3, 2), 100.0)])
        codebook = with_prototypes(kind, prototypes, restart_threshold=0.5, seed=seed)
        z = torch.randn(64, 2)
        torch.manual_seed(seed + 7)  # the global generator must not matter
        for _ in range(3):
            codebook.after_step(codebook(z))
        return codebook.codebook.detach()

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@EVERY
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("commitment", -1.0, r"commitment.*-1\.0"),
        ("decay", 1.0, r"decay must lie in \[0, 1\), got 1\.0"),
        ("decay", -0.1, r"decay.*-0\.1"),
        ("restart_threshold", 1.0, r"restart_threshold must lie in \[0, 1\), got 1\.0"),
        ("restart_threshold", -0.1, r"-0\.1"),
        ("usage_weight", -0.5, r"usage_weight.*-0\.5"),
        ("variance_weight", 0.0, r"variance_weight must be > 0, got 0\.0"),
    ],
)
def test_wrong_options(kind, option, value, message):
    wrong = TypeError if not issubclass(kind, SoftCodebook) and "_weight" in option else ValueError
    with pytest.raises(wrong, match=message if wrong is ValueError else option):
        kind(3, 4, **{option: value})
