"""StackUtilizationTracker: each level of a stack and each group of a product by itself."""

import pytest
import torch

from softvq import (
    CodebookStack,
    ProductCodebook,
    StackUtilizationTracker,
    UtilizationTracker,
    VQCodebook,
)


def product():
    return ProductCodebook([VQCodebook(2, 5), VQCodebook(2, 7)])


@pytest.mark.parametrize(
    "whole",
    [
        CodebookStack([VQCodebook(4, 5), VQCodebook(4, 7), VQCodebook(4, 6)]),
        CodebookStack([VQCodebook(4, 5), VQCodebook(4, 7)], pools=[2, 1]),
        product(),
        CodebookStack([product(), product()]),
        CodebookStack([VQCodebook(4, 3), product()]),
    ],
    ids=["residual", "pyramid", "product", "products", "mixed"],
)
def test_every_codebook_is_counted_by_itself(whole, tmp_path):
    torch.manual_seed(0)
    z = torch.randn(3, 4, 4, 4)
    trackers = StackUtilizationTracker(whole)
    for part in z.split(1):
        trackers.update(whole.encode(part))
    counts = [usage.counts.tolist() for usage in trackers.compute()]
    outs = whole(z, hard=True).levels
    own = [torch.bincount(out.indices.flatten(), minlength=book.codebook_size).tolist()
           for out, book in zip(outs, whole.codebooks, strict=True)]  # fmt: skip
    assert counts == own
    loaded = StackUtilizationTracker(whole)
    loaded.load_state_dict(trackers.state_dict())
    assert [usage.counts.tolist() for usage in loaded.end_epoch()] == own
    assert [tracker.history.tolist() for tracker in loaded] == [[row] for row in own]
    assert all(usage.used == 0 for usage in loaded.compute())


def test_what_does_not_fit_is_not_counted():
    stack = CodebookStack([VQCodebook(2, 4), VQCodebook(2, 4)])
    trackers = StackUtilizationTracker(stack)
    with pytest.raises(ValueError, match="all 2 codebooks, got 1"):
        trackers.update(torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(IndexError, match=r"\[0, 4\)"):
        trackers.update(torch.tensor([[1, 9]]))
    assert [usage.used for usage in trackers.compute()] == [0, 0]


def test_one_tracker_refuses_the_list_of_several_levels():
    with pytest.raises(TypeError, match="each level by itself"):
        UtilizationTracker(4).update([torch.zeros(3, dtype=torch.int64)] * 2)
