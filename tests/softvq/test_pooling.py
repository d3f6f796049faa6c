"""Block means and back, against loops and torch's own pooling."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softvq._internal.pooling import grid_shape, pool, unpool


def pooled_by_loops(z, factor, mask):
    cells = [math.ceil(n / factor) for n in z.shape[1:-1]]
    means = np.zeros((z.shape[0], *cells, z.shape[-1]))
    kept = np.zeros((z.shape[0], *cells), dtype=bool)
    for cell in itertools.product(range(z.shape[0]), *map(range, cells)):
        block = (cell[0], *(slice(i * factor, (i + 1) * factor) for i in cell[1:]))
        places = z[block][mask[block]]
        kept[cell] = len(places) > 0
        if len(places):
            means[cell] = places.mean(axis=0)
    return means, kept


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    factor=st.integers(1, 4),
    seed=st.integers(0, 100),
)
def test_block_means_are_those_of_loops(shape, factor, seed):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, *shape, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, *shape, generator=generator) > 0.4
    dirty = torch.where(mask[..., None], z, math.nan)
    means, kept = pool(dirty, factor, mask)
    expected, expected_kept = pooled_by_loops(z.numpy(), factor, mask.numpy())
    np.testing.assert_allclose(means.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(kept.numpy(), expected_kept)
    whole, none = pool(z, factor)
    assert none is None
    np.testing.assert_allclose(
        whole.numpy(), pooled_by_loops(z.numpy(), factor, np.ones_like(mask))[0], atol=1e-12
    )
    assert grid_shape([means.shape[:-1]], [factor], shape) == tuple(shape)


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), factor=st.integers(1, 4))
def test_unpooling_puts_the_block_s_vector_at_each_of_its_places(shape, factor):
    cells = torch.randn(2, *(math.ceil(n / factor) for n in shape), 3)
    spread = unpool(cells, factor, shape)
    assert spread.shape == (2, *shape, 3)
    for place in itertools.product(*map(range, shape)):
        cell = tuple(i // factor for i in place)
        assert torch.equal(spread[(slice(None), *place)], cells[(slice(None), *cell)])


def test_what_is_left_over_pools_to_zero():
    z = torch.randn(2, 7, 5, 3, dtype=torch.float64)
    left = z - unpool(pool(z, 3)[0], 3, (7, 5))
    assert pool(left, 3)[0].abs().max() < 1e-15


def test_the_grid_is_that_of_the_finest_level():
    assert grid_shape([(4, 2, 3), (4, 4, 5), (4, 7, 9)], (4, 2, 1)) == (7, 9)
    assert grid_shape([(4, 2, 3)], (4, 2, 1)) == (8, 12)
    assert grid_shape([(4, 2, 3)], (4, 2, 1), (7, 9)) == (7, 9)
    assert grid_shape([(4,), (4,)], (1, 1)) == ()


@pytest.mark.parametrize(
    ("cells", "shape"),
    [
        ([(4, 2), (4, 9)], None),  # 9 places do not fit two blocks of 4
        ([(4, 2), (4, 4)], None),  # 4 places fill one block of 4
        ([(4, 2), (3, 8)], None),  # another batch
        ([(4, 2), (4, 8, 8)], None),  # another number of axes
        ([(4, 2)], (9,)),
        ([(4, 2)], (4,)),
        ([(4, 2)], (8, 8)),
    ],
)
def test_levels_of_no_common_grid_are_refused(cells, shape):
    with pytest.raises(ValueError, match="grid of shape"):
        grid_shape(cells, (4, 1), shape)
