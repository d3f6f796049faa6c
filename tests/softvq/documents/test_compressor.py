"""DocumentCompressor on sequences whose structure is known."""

import math

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from softvq import CodesPerToken, DDCLCodebook, DDCLReadout, DocumentCompressor, Schedule

WORDS, TOPICS, SEGMENT, DIM = 12, 4, 6, 8


def documents(count, length=24, seed=0):
    """Every segment is about one topic; a topic speaks in three words of its own."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(99)
    centres = 3 * torch.randn(TOPICS, DIM, generator=fixed)
    vectors = centres.repeat_interleave(3, dim=0) + torch.randn(WORDS, DIM, generator=fixed)
    topics = torch.randint(TOPICS, (count, length // SEGMENT), generator=generator)
    words = 3 * topics.repeat_interleave(SEGMENT, dim=1)
    words = words + torch.randint(3, words.shape, generator=generator)
    noise = 0.2 * torch.randn(*words.shape, DIM, generator=generator)
    return vectors[words] + noise, words, topics


def compressor_of(sizes=(WORDS, TOPICS), segments=(SEGMENT,), codes=1.05):
    torch.manual_seed(0)
    codebooks = [
        DDCLCodebook(DIM, size, temperature=CodesPerToken(Schedule(codes)), usage_weight=0.05)
        for size in sizes
    ]
    return DocumentCompressor(codebooks, segments)


def trained(steps=60):
    compressor = compressor_of()
    compressor.initialize(documents(64)[0])
    optimizer = torch.optim.Adam(compressor.parameters(), lr=0.02)
    for step in range(steps):
        out = compressor(documents(64, seed=step)[0])
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        compressor.after_step(out)
    return compressor


def test_initialize_takes_several_batches_with_masks():
    tokens, _, _ = documents(64)
    whole, parts = compressor_of(), compressor_of()
    whole.initialize(tokens)
    padded = torch.nn.functional.pad(tokens[40:], (0, 0, 0, SEGMENT), value=math.nan)
    mask = torch.arange(padded.shape[1]) < tokens.shape[1]
    parts.initialize([tokens[:40], padded], mask=[None, mask.expand(24, -1)])
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())


def test_layers_find_words_and_then_topics():
    compressor = trained()
    tokens, words, topics = documents(200, seed=1000)
    out = compressor(tokens)
    first, second = (level.code.indices for level in out.levels)
    assert first.shape == (200, 24)
    assert second.shape == (200, 4)
    assert adjusted_rand_score(words.flatten(), first.flatten()) > 0.95
    assert adjusted_rand_score(topics.flatten(), second.flatten()) > 0.95
    # A document's shares are its segments'.
    shares = out.levels[1].proportions
    counted = torch.stack([(second == k).float().mean(dim=1) for k in range(TOPICS)], dim=1)
    assert (shares - counted).abs().mean() < 0.05
    assert out.sequence.shape == (200, 4, DIM)


def test_a_level_reads_its_tokens_as_a_readout_does():
    compressor = compressor_of(codes=2.0)
    tokens = documents(6)[0]
    compressor.initialize(tokens.repeat(4, 1, 1))
    mask = torch.rand(6, 24) > 0.3
    mask[0] = False
    out = compressor(tokens, mask)
    read = DDCLReadout(compressor.codebooks[0])(tokens, mask)
    torch.testing.assert_close(out.levels[0].proportions, read.proportions)
    torch.testing.assert_close(out.levels[0].prototypes, read.prototypes)
    sums = out.levels[1].proportions.sum(dim=1)
    torch.testing.assert_close(sums, torch.ones(6) * mask.any(dim=1))
    assert torch.equal(out.mask, mask.view(6, 4, SEGMENT).any(dim=2))


@pytest.mark.parametrize("padding", [math.nan, math.inf, 1e30])
def test_what_padding_holds_changes_nothing(padding):
    mask = torch.rand(5, 23, generator=torch.Generator().manual_seed(0)) > 0.4
    results = []
    for fill in (0.0, padding):
        compressor = compressor_of()
        compressor.initialize(documents(64)[0])
        tokens = torch.where(mask[..., None], documents(5)[0][:, :23], fill).requires_grad_()
        out = compressor(tokens, mask)
        shares = [level.proportions.square().sum() for level in out.levels]
        (out.loss + out.sequence.square().sum() + sum(shares)).backward()
        compressor.after_step(out)
        state = [value.clone() for value in compressor.state_dict().values()]
        results.append([out.sequence, tokens.grad, *shares, *state])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[1][1][~mask].count_nonzero() == 0


def test_gradients_reach_every_layer_and_the_tokens():
    compressor = compressor_of((5, 4, 3), (2, 2), codes=2.0)
    tokens = documents(8)[0].requires_grad_()
    compressor.initialize(tokens.detach())
    out = compressor(tokens)
    assert [tuple(level.proportions.shape) for level in out.levels] == [(8, 5), (8, 4), (8, 3)]
    assert out.sequence.shape == (8, 6, DIM)
    leaves = [tokens, *(codebook.codebook for codebook in compressor.codebooks)]
    for target in (out.sequence.square().sum(), out.levels[-1].proportions[:, 0].sum()):
        grads = torch.autograd.grad(target, leaves, retain_graph=True)
        assert all(grad.abs().max() > 1e-12 for grad in grads)


def test_wrong_calls_are_refused():
    with pytest.raises(ValueError, match="at least one codebook"):
        DocumentCompressor([], [])
    with pytest.raises(ValueError, match="2 codebooks and segments"):
        compressor_of(segments=())
    with pytest.raises(ValueError, match="at least 1"):
        compressor_of(segments=(0,))
    with pytest.raises(ValueError, match="same dim"):
        DocumentCompressor([DDCLCodebook(2, 3), DDCLCodebook(3, 3)], [2])
    with pytest.raises(ValueError, match=r"\(B, T, D\)"):
        compressor_of()(torch.randn(5, DIM))
