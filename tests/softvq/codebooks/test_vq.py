import numpy as np
import pytest
import torch

from softvq import VQCodebook, VQEMACodebook

BOTH = pytest.mark.parametrize("kind", [VQCodebook, VQEMACodebook])

# Four prototypes of five elements, with distances that can be checked on paper.
PROTOTYPES = torch.tensor(
    [
        [1.0, 0.0, -1.0, -1.0, 2.0],
        [1.0, -2.0, 0.0, 0.0, 1.0],
        [2.0, 1.0, 0.0, 1.0, 1.0],
        [-1.0, -2.0, 0.0, 2.0, 0.0],
    ]
)
LATENTS = torch.tensor(
    [
        [[1.0, 0.0, -1.0, -1.0, 1.0], [2.0, 1.0, 0.0, 2.0, 3.0]],
        [[0.0, -2.0, 0.0, 1.0, 0.0], [1.0, -1.0, 0.0, -1.0, 1.0]],
    ]
)


def with_prototypes(kind, prototypes=PROTOTYPES, **options):
    options = {"restart_threshold": 0.0} | options
    codebook = kind(prototypes.shape[1], prototypes.shape[0], **options)
    codebook.codebook.data.copy_(prototypes)
    return codebook


@BOTH
def test_example_on_paper(kind):
    out = with_prototypes(kind)(LATENTS)
    assert out.indices.tolist() == [[0, 2], [3, 1]]
    assert torch.equal(out.quantized, PROTOTYPES[[0, 2, 3, 1]].view(2, 2, 5))
    # Chosen distances 1, 5, 2, 2 over four latents of five elements.
    for name in ("codebook_loss", "commitment_loss", "loss_q", "loss_ols"):
        assert out.losses[name].item() == pytest.approx(10 / 20)
    assert out.losses["variance"].item() == 0
    assert out.loss.item() == pytest.approx((1.25 if kind is VQCodebook else 0.25) * 0.5)
    assert out.usage.tolist() == [0.25] * 4
    assert out.codes_per_token.item() == 1


@BOTH
def test_straight_through_gradient_is_exactly_one(kind):
    codebook = with_prototypes(kind)
    z = LATENTS.clone().requires_grad_()
    upstream = torch.randn(2, 2, 5)
    codebook(z).quantized.backward(upstream)
    assert torch.equal(z.grad, upstream)
    assert codebook.codebook.grad is None


def test_each_loss_moves_one_side_only():
    codebook = with_prototypes(VQCodebook)
    z = LATENTS.clone().requires_grad_()
    losses = codebook(z).losses
    leaves = (z, codebook.codebook)
    to_z, to_codebook = torch.autograd.grad(losses["commitment_loss"], leaves, allow_unused=True)
    assert to_codebook is None
    torch.testing.assert_close(to_z, 2 * (LATENTS - PROTOTYPES[[0, 2, 3, 1]].view(2, 2, 5)) / 20)
    to_z, to_codebook = torch.autograd.grad(losses["codebook_loss"], leaves, allow_unused=True)
    assert to_z is None
    expected = 2 * (PROTOTYPES - LATENTS.view(4, 5)[[0, 3, 1, 2]]) / 20
    torch.testing.assert_close(to_codebook, expected)


def test_commitment_scales_the_encoders_gradient_only():
    def gradients(commitment):
        codebook = with_prototypes(VQCodebook, commitment=commitment)
        z = LATENTS.clone().requires_grad_()
        codebook(z).loss.backward()
        return z.grad, codebook.codebook.grad

    weak, strong = gradients(0.1), gradients(1.0)
    torch.testing.assert_close(strong[0], 10 * weak[0])
    assert torch.equal(strong[1], weak[1])
    assert strong[1].abs().max() > 0


def test_ema_matches_its_definition():
    torch.manual_seed(0)
    codebook = VQEMACodebook(3, 6, decay=0.8, restart_threshold=0.0).double()
    size, total = np.ones(6), codebook.codebook.numpy().copy()
    centers = total.copy()
    for step in range(8):
        z = torch.randn(2, 20, 3, dtype=torch.float64) + 0.1 * step
        mask = torch.rand(2, 20) > 0.2
        out = codebook(z, mask)
        codebook.after_step(out)

        flat = z.numpy()[mask.numpy()]
        nearest = ((flat[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(6):
            mine = flat[nearest == k]
            size[k] = 0.8 * size[k] + 0.2 * len(mine)
            total[k] = 0.8 * total[k] + 0.2 * mine.sum(axis=0)
            centers[k] = total[k] / size[k]
        np.testing.assert_allclose(codebook.running_usage, size, rtol=1e-12)
        np.testing.assert_allclose(codebook.embed_sum, total, rtol=1e-10)
        np.testing.assert_allclose(codebook.codebook, centers, rtol=1e-10)
    assert not codebook.codebook.requires_grad


def test_codes_that_nobody_chooses_keep_their_place():
    # Never chosen for so long that the running count underflows, then chosen again.
    prototypes = torch.tensor([[0.0, 0.0], [50.0, -30.0]])
    codebook = with_prototypes(VQEMACodebook, prototypes, decay=0.5)
    codebook.embed_sum.copy_(prototypes)
    z = torch.randn(16, 2)
    for _ in range(200):
        codebook.after_step(codebook(z))
    torch.testing.assert_close(codebook.codebook[1], prototypes[1])
    torch.testing.assert_close(codebook.codebook[0], z.mean(dim=0))
    codebook.after_step(codebook(prototypes[1:] + 1))
    torch.testing.assert_close(codebook.codebook[1], prototypes[1] + 1)


@BOTH
def test_kmeans_initialisation(kind):
    torch.manual_seed(0)
    corners = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    z = corners.repeat(50, 1) + 0.1 * torch.randn(200, 2)
    codebook = kind(2, 4)
    codebook.initialize(z)
    means = torch.stack([z[k::4].mean(dim=0) for k in range(4)])
    gap = torch.cdist(means, codebook.codebook.detach()).min(dim=1).values
    assert gap.max() < 1e-4
    assert torch.equal(codebook.running_usage, torch.ones(4))
    if kind is VQEMACodebook:
        assert torch.equal(codebook.embed_sum, codebook.codebook)


def test_the_textbook_initialisation_is_uniform():
    codebook = VQCodebook(64, 50).codebook.detach()
    assert codebook.abs().max() <= 1 / 50
    assert codebook.std().item() == pytest.approx(1 / 50 / 3**0.5, rel=0.05)


def test_an_exported_forward_holds_for_more_tokens_than_one_block():
    codebook = VQCodebook(4, 512)
    batch = torch.export.Dim("batch", min=1, max=2**20)
    example = torch.randn(4, 64, 4)
    exported = torch.export.export(codebook, (example,), dynamic_shapes={"z": {0: batch}})
    z = torch.randn(500, 64, 4)
    torch.testing.assert_close(exported.module()(z).quantized, codebook(z).quantized)
