import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from softvq import DDCLCodebook, VQEMACodebook, kmeans
from softvq.initialize import kmeans_plus_plus, lloyd_step


def inertia(z, centers):
    z, centers = np.asarray(z, np.float64), np.asarray(centers, np.float64)
    return ((z[:, None] - centers) ** 2).sum(axis=2).min(axis=1).sum()


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_inertia_is_close_to_scikit_learns_on_blobs(offset):
    z, _ = make_blobs(400, n_features=4, centers=8, cluster_std=0.5, random_state=0)
    best = KMeans(8, n_init=10, random_state=0).fit(z).inertia_
    latents = torch.tensor(z + offset, dtype=torch.float32)
    ours = [inertia(z, kmeans(latents, 8, seed=seed).numpy() - offset) for seed in range(6)]
    assert min(ours) == pytest.approx(best, rel=1e-3)
    # A run in a few puts two seeds into one blob, which Lloyd's iterations cannot mend.
    assert np.median(ours) < 1.01 * best
    assert max(ours) < 5 * best


def test_seeding_beats_random_rows_and_lloyd_never_hurts():
    z, _ = make_blobs(300, n_features=3, centers=12, cluster_std=0.2, random_state=1)
    z = torch.tensor(z)
    seeded, random = [], []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        centers = kmeans_plus_plus(z, 12, generator)
        assert all((z == row).all(dim=1).any() for row in centers)
        seeded.append(inertia(z, centers))
        random.append(inertia(z, z[torch.randperm(300, generator=generator)[:12]]))
        for _ in range(4):
            moved = lloyd_step(z, centers)
            assert inertia(z, moved) <= inertia(z, centers) * (1 + 1e-12)
            centers = moved
    assert np.mean(seeded) < 0.3 * np.mean(random)


def test_seeds_are_drawn_in_proportion_to_the_squared_distance():
    # Whatever the first seed, the second is one of the others with odds of their squared distance.
    z = torch.tensor([[0.0], [1.0], [3.0]])
    trials = 1500
    seen = np.zeros((3, 3))
    for seed in range(trials):
        rows = kmeans_plus_plus(z, 2, torch.Generator().manual_seed(seed)).flatten().tolist()
        first, second = ([0.0, 1.0, 3.0].index(row) for row in rows)
        seen[first, second] += 1
    odds = np.array([[0, 1, 9], [1, 0, 4], [9, 4, 0]])
    expected = odds / odds.sum(axis=1, keepdims=True) / 3
    # Four standard deviations of a binomial share.
    assert (np.abs(seen / trials - expected) <= 4 * np.sqrt(expected / trials)).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 4), st.integers(0, 8))
def test_lloyd_step_matches_its_definition(seed, size, dim, extra):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(size + extra, dim, generator=generator, dtype=torch.float64)
    centers = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    d = ((z[:, None] - centers) ** 2).sum(dim=2)
    nearest, error = d.argmin(dim=1), d.min(dim=1).values
    moved = lloyd_step(z, centers)
    empty = [k for k in range(size) if not (nearest == k).any()]
    for k in set(range(size)) - set(empty):
        torch.testing.assert_close(moved[k], z[nearest == k].mean(dim=0))
    worst = z[error.argsort(descending=True)[: len(empty)]]
    torch.testing.assert_close(moved[empty], worst)


def test_fewer_latents_than_prototypes():
    with pytest.raises(ValueError, match=r"codebook_size=8 latents, got 5"):
        kmeans(torch.randn(5, 2), 8)
    with pytest.raises(ValueError, match=r"codebook_size=8 latents, got 6"):
        DDCLCodebook(2, 8).initialize([torch.randn(1, 3, 2)] * 2)
    with pytest.raises(ValueError, match="no batch of latents"):
        DDCLCodebook(2, 8).initialize([])
    assert kmeans(torch.randn(8, 2), 8).unique(dim=0).shape == (8, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_latents_that_are_not_finite(bad):
    z = torch.randn(20, 2)
    z[7, 1] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        kmeans(z, 4)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1000.0, -1e6])
@pytest.mark.parametrize("distinct", [1, 3])
def test_duplicates_warn_and_give_distinct_rows(distinct, offset):
    z = torch.arange(distinct).repeat(8)[:, None].expand(-1, 3) + offset
    with pytest.warns(UserWarning, match=f"only {distinct} of the 6 prototypes"):
        centers = kmeans(z, 6)
    assert centers.unique(dim=0).shape == (6, 3)
    # Every center is still where the data are.
    assert torch.cdist(centers, z).min(dim=1).values.max() < 0.1 + 1e-4 * abs(offset)
    assert inertia(z, centers) < (0.1 + 1e-4 * abs(offset)) ** 2 * len(z)


@pytest.mark.parametrize("kind", [DDCLCodebook, VQEMACodebook])
def test_several_batches_equal_their_concatenation(kind):
    z = torch.randn(4, 16, 3)
    whole, parts, generated = (kind(3, 8) for _ in range(3))
    whole.initialize(z, seed=3)
    parts.initialize([z[0], z[1:3], z[3, :4], z[3, 4:]], seed=3)
    generated.initialize((part.requires_grad_() for part in z), seed=3)
    for other in (parts, generated):
        for name, value in whole.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
    assert not torch.equal(whole.codebook, kind(3, 8).codebook)


def test_channel_first_latents():
    z = torch.randn(2, 3, 5, 4)
    first, last = DDCLCodebook(3, 8, channel_first=True), DDCLCodebook(3, 8)
    first.initialize(z)
    last.initialize(z.movedim(1, -1))
    assert torch.equal(first.codebook, last.codebook)


def test_the_seed_alone_decides():
    z = torch.randn(100, 3)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = kmeans(z, 10, seed=5, iterations=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(kmeans(z, 10, seed=5, iterations=1), first)
    assert not torch.equal(kmeans(z, 10, seed=6, iterations=1), first)
