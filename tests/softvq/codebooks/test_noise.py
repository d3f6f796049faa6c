"""What training puts in the place of a soft code; prototypes that learn beside their gradient."""

import pytest
import torch
from torch.nn import functional as F

from softvq import CodebookStack, DDCLCodebook, DDCLEMCodebook


def test_in_training_the_error_keeps_its_length_and_loses_its_direction():
    torch.manual_seed(0)
    codebook, z = DDCLCodebook(3, 8, noise=1.0), torch.randn(4000, 3)
    codebook.initialize(z)
    noisy, soft = codebook(z), codebook.eval()(z)
    assert torch.equal(noisy.indices, soft.indices)
    assert torch.equal(noisy.loss, soft.loss)
    errors, own = noisy.quantized - z, soft.quantized - z
    torch.testing.assert_close(errors.norm(dim=1), own.norm(dim=1))
    directions = F.normalize(errors, dim=1)
    assert directions.mean(dim=0).abs().max() < 0.05
    assert (directions * F.normalize(own, dim=1)).sum(dim=1).mean().abs() < 0.05
    assert torch.equal(codebook.train()(z, hard=True).quantized, codebook.decode(soft.indices))


def test_the_noise_reaches_its_share_of_the_tokens():
    torch.manual_seed(0)
    codebook, z = DDCLCodebook(3, 8, noise=0.3), torch.randn(4000, 3)
    noisy, soft = codebook(z).quantized, codebook.eval()(z).quantized
    assert (noisy != soft).any(dim=1).float().mean().item() == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_the_noisy_code_has_an_exact_derivative(noise):
    torch.manual_seed(0)
    codebook = DDCLCodebook(3, 5, noise=noise).double()

    def code(z, prototypes):
        torch.manual_seed(1)
        arguments = {"codebook": prototypes}
        return torch.func.functional_call(codebook, arguments, (z,)).quantized

    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    prototypes = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(code, (z, prototypes))


def test_a_latent_on_its_prototype_has_a_finite_gradient():
    codebook = DDCLCodebook(2, 1, noise=1.0)
    z = codebook.codebook.detach().clone().requires_grad_()
    codebook(z).quantized.sum().backward()
    assert torch.equal(z.grad, torch.ones(1, 2))


def test_without_a_pull_the_optimizer_alone_moves_the_prototypes():
    torch.manual_seed(0)
    z = torch.randn(64, 3)
    moved = {}
    for pull in (0.0, 0.5, 1.0):
        torch.manual_seed(1)
        codebook = DDCLCodebook(3, 4, pull=pull)
        before = codebook.codebook.detach().clone()
        codebook.after_step(codebook(z))
        moved[pull] = codebook.codebook.detach() - before
    assert torch.equal(moved[0.0], torch.zeros(4, 3))
    torch.testing.assert_close(2 * moved[0.5], moved[1.0])
    torch.manual_seed(1)
    means = DDCLEMCodebook(3, 4)
    before = means.codebook.clone()
    means.after_step(means(z))
    torch.testing.assert_close(moved[1.0], means.codebook - before)


@pytest.mark.parametrize("name", ["noise", "pull", "balance"])
def test_shares_lie_between_none_and_all(name):
    with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got 1.5"):
        DDCLCodebook(3, 4, **{name: 1.5})


def test_the_noise_of_a_stack_is_the_last_level_s_and_as_long_as_the_whole_error():
    torch.manual_seed(0)
    stack = CodebookStack([DDCLCodebook(3, 9, noise=1.0) for _ in range(3)])
    z = torch.randn(50, 3, requires_grad=True)
    stack.initialize(z)
    noisy, soft = stack(z), stack.eval()(z)
    assert torch.equal(noisy.indices, soft.indices)  # each level coded what was left, not noise
    errors, own = noisy.quantized - z, soft.quantized - z
    torch.testing.assert_close(errors.norm(dim=1), own.norm(dim=1))
    assert not torch.allclose(errors, own, atol=1e-2)
    # Up to the change of that length, the latents get the decoder's gradient as it is.
    (gradient,) = torch.autograd.grad(noisy.quantized.sum(), z)
    assert gradient.mean().item() == pytest.approx(1.0, abs=0.3)
