"""diagnose: each sickness that a codebook can have is named, and a healthy one has none."""

import re

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from softvq import (
    CodebookStack,
    ConstantTemperature,
    DDCLCodebook,
    DDCLEMCodebook,
    Schedule,
    VQCodebook,
    VQEMACodebook,
    diagnose,
)
from softvq.functional import critical_temperature

KINDS = (DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook)


def latents(count=2000, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def started(kind=DDCLEMCodebook, size=16, **options):
    torch.manual_seed(0)
    codebook = kind(4, size, **options)
    codebook.initialize(latents())
    return codebook


@pytest.mark.parametrize("kind", KINDS)
def test_a_codebook_that_k_means_placed_is_healthy(kind):
    codebook = started(kind)
    before = {name: value.clone() for name, value in codebook.state_dict().items()}
    found = diagnose(codebook, latents(seed=1))
    assert found.healthy
    assert "Nothing is wrong" in str(found)
    assert (found.used, found.dead) == (16, [])
    assert codebook.training
    assert all(torch.equal(value, before[name]) for name, value in codebook.state_dict().items())


def test_its_figures_are_those_of_scikit_learn():
    z = latents(seed=1)
    codebook = started(VQCodebook)
    found = diagnose(codebook, z)
    model = KMeans(16, n_init=1).fit(z.numpy())
    model.cluster_centers_ = codebook.codebook.detach().numpy().astype(np.float32)
    counts = np.bincount(model.predict(z.numpy()), minlength=16)
    share = counts[counts > 0] / counts.sum()
    assert found.perplexity == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)
    error = -model.score(z.numpy()) / len(z)
    assert found.relative_error == pytest.approx(error / z.var(dim=0, correction=0).sum().item(),
                                                 rel=1e-4)  # fmt: skip


def fresh():
    return DDCLEMCodebook(4, 16)


def dead():
    codebook = started()
    codebook.codebook[[3, 7]] += 100.0
    return codebook


def doubled():
    codebook = started(size=32)
    codebook.codebook[5] = codebook.codebook[2] + 1e-6
    return codebook


def uneven():
    codebook = started(VQCodebook)
    codebook.codebook.data.mul_(6.0)
    codebook.codebook.data[0] = 0.0
    return codebook


def one_point():
    codebook = started()
    codebook.codebook.mul_(0.01)
    return codebook


def hot():
    temperature = 1.2 * critical_temperature(latents(), factor=2.0).item()
    return started(temperature=ConstantTemperature(Schedule(temperature)))


def soft():
    temperature = 0.5 * critical_temperature(latents(), factor=2.0).item()
    return started(temperature=ConstantTemperature(Schedule(temperature)))


def elsewhere():
    codebook = started()
    codebook.codebook.add_(50.0)
    return codebook


SICK = [
    (fresh, "not-started", r"attach\(model, optimizer\)"),
    (dead, "dead-codes", r"2 of 16 codes \(12.5 %\) .*: 3, 7\. Train with restart_threshold=0\.1"),
    (doubled, "duplicates", r"1 of 32 codes .*: 5\."),
    (uneven, "low-perplexity", r"of a token's 4\.0 bits say nothing"),
    (one_point, "collapsed", r"spread by 0\.0"),
    (hot, "collapsed", r"T is 1\.\d+ of the critical temperature"),
    (soft, "too-soft", r"assigned to \d+\.\d+ codes"),
    (elsewhere, "off-scale", r"after_step"),
]


@pytest.mark.parametrize(("sick", "name", "words"), SICK, ids=[case[0].__name__ for case in SICK])
def test_each_sickness_is_named(sick, name, words):
    found = diagnose(sick(), latents(seed=1))
    assert not found.healthy
    assert re.search(words, found.symptoms[name])
    assert f"{name}: " in str(found)


def test_few_latents_accuse_no_code():
    found = diagnose(started(size=64), latents(40, seed=1))
    assert list(found.symptoms) == ["few-latents"]


def test_numbers_that_are_none_are_all_that_is_said():
    z = latents()
    z[3, 1] = torch.nan
    assert list(diagnose(started(), z).symptoms) == ["non-finite"]
    codebook = started()
    codebook.codebook[0, 0] = torch.inf
    assert "prototypes hold NaN" in diagnose(codebook, latents()).symptoms["non-finite"]


def test_padding_is_no_latent():
    z = latents(seed=1)
    mask = torch.arange(2000) < 1500
    z[1500:] = 1e6
    assert diagnose(started(), z, mask) == diagnose(started(), z[:1500])


def test_the_levels_of_a_stack_are_examined_on_what_reaches_them():
    stack = CodebookStack([VQEMACodebook(4, 8), VQEMACodebook(4, 8)])
    stack.initialize(latents())
    with pytest.raises(TypeError, match=r"each of its codebooks"):
        diagnose(stack, latents())
    outs = stack(latents(), hard=True).levels
    assert all(diagnose(book, out.latents).healthy
               for book, out in zip(stack.codebooks, outs, strict=True))  # fmt: skip


def test_it_needs_a_latent():
    with pytest.raises(ValueError, match="at least one latent"):
        diagnose(started(), latents(), torch.zeros(2000, dtype=torch.bool))
