"""Quantizers of other libraries behind softvq's interface: nothing is lost on the way."""

import math

import pytest
import torch
from small_runs import arguments, command

from models import build_model
from models.code_bridge import CodeBridge
from models.peers import PEERS, PeerStack, peer
from training.config import TrainConfig
from training.data.splits import load_splits
from training.trainer import Trainer

vqp = pytest.importorskip("vector_quantize_pytorch")


@pytest.mark.parametrize("rotation", [False, True])
def test_a_stack_of_vector_quantize_is_their_residual_vq(rotation):
    torch.manual_seed(0)
    theirs = vqp.ResidualVQ(
        dim=8, num_quantizers=3, codebook_size=16, decay=0.8, commitment_weight=1.0,
        kmeans_init=True, threshold_ema_dead_code=2, rotation_trick=rotation,
    )  # fmt: skip
    latents = torch.randn(4, 64, 8)
    theirs(latents)  # its k-means
    name = "vqp-rotation" if rotation else "vqp-ema"
    stack = PeerStack([peer(name, 8, 16, channel_first=False) for _ in range(3)])
    for level, layer in zip(stack.codebooks, theirs.layers, strict=True):
        level.module.load_state_dict(layer.state_dict())
    for training in (True, False):
        stack.train(training)
        theirs.train(training)
        first, second = (latents.clone().requires_grad_() for _ in range(2))
        torch.manual_seed(1)
        quantized, indices, losses = theirs(first)
        torch.manual_seed(1)
        out = stack(second)
        assert torch.equal(out.indices, indices)
        torch.testing.assert_close(out.quantized, quantized)
        torch.testing.assert_close(out.loss, losses.sum())
        if training:
            weights = torch.randn_like(latents)
            ((quantized * weights).sum() + losses.sum()).backward()
            ((out.quantized * weights).sum() + out.loss).backward()
            torch.testing.assert_close(second.grad, first.grad)
    for level, layer in zip(stack.codebooks, theirs.layers, strict=True):
        assert torch.equal(level.codebook, layer.codebook)


@pytest.mark.parametrize("name", [*PEERS])
def test_padding_counts_for_nothing_and_a_frozen_peer_stays_as_it_is(name):
    torch.manual_seed(0)
    codebook = peer(name, 4, 16, channel_first=False)
    z, mask = torch.randn(6, 20, 4), torch.rand(6, 20) > 0.3
    codebook(z)  # its k-means
    codebook.freeze()
    before = {name: value.clone() for name, value in codebook.state_dict().items()}
    codebook.train()
    out = codebook(torch.where(mask[..., None], z, math.nan).requires_grad_(), mask)
    alone = codebook(z[mask][None])
    assert torch.equal(out.quantized[mask], alone.quantized[0])
    assert torch.equal(out.indices[mask], alone.indices[0])
    torch.testing.assert_close((out.loss, out.usage), (alone.loss, alone.usage))
    assert (out.indices[~mask] == -1).all()
    assert out.quantized[~mask].count_nonzero() == 0
    codebook.after_step(out)
    assert all(torch.equal(value, before[name]) for name, value in codebook.state_dict().items())


def test_tokens_of_a_bridge_stand_for_the_codes_that_the_decoder_sees():
    torch.manual_seed(0)
    codebook = peer("vqp-bridge", 4, 16, channel_first=False)
    z = torch.randn(6, 20, 4)
    codebook(z)  # its k-means
    stored = codebook.module.codebook.detach().clone()
    torch.nn.init.normal_(codebook.module._codebook.vq_bridge.recover.weight)
    codebook.eval()
    out = codebook(z)
    assert torch.equal(codebook.decode(out.indices), out.quantized)
    assert not torch.allclose(codebook.codebook, stored)


def test_one_code_s_gradient_moves_the_others_through_the_bridge():
    torch.manual_seed(0)
    bridge, codes = CodeBridge(4, 12), torch.randn(1, 12, 4, requires_grad=True)
    torch.nn.init.normal_(bridge.recover.weight)
    bridge(codes)[0, 0].sum().backward()
    assert (codes.grad[0].norm(dim=1) > 0).all()


def test_diveq_is_its_authors_package_at_its_defaults():
    diveq = pytest.importorskip("diveq")
    torch.manual_seed(0)
    theirs, ours = diveq.DIVEQ(16, 4, verbose=False), peer("diveq", 4, 16, channel_first=False)
    ours.module.quantizer.load_state_dict(theirs.state_dict())
    z = torch.randn(40, 4)
    for training in (True, False):
        ours.train(training)
        torch.manual_seed(1)
        quantized, indices, _ = (theirs if training else theirs.inference)(z)
        torch.manual_seed(1)
        out = ours(z)
        assert torch.equal(out.quantized, quantized)
        assert torch.equal(out.indices, indices)


def test_the_config_stacks_them_so():
    model = build_model(
        {"quantizer": "vqp-ema", "level_pools": [2, 1], "codebook_size": 16, "hidden_channels": 8}
    )
    assert type(model.codebook) is PeerStack
    images = torch.rand(2, 3, 32, 32)
    out = model(images)
    out.recon.sum().backward()
    assert [tuple(part.shape) for part in out.code.indices] == [(2, 4, 4), (2, 8, 8)]
    model.eval()
    torch.testing.assert_close(
        model.reconstruct(images, "argmax"), model(images).recon.clamp(0, 1), atol=1e-5, rtol=1e-4
    )
    with pytest.raises(ValueError, match="fsq has no levels"):
        build_model({"quantizer": "fsq", "level_pools": [1, 1], "level_dropout": 0.5})


def test_fsq_levels_multiply_to_the_codebook_size():
    for bits in range(2, 17):
        book = peer("fsq", 6, 2**bits, channel_first=False).eval()
        assert book.codebook.shape == (2**bits, 6)
        indices = torch.arange(2**bits)
        if bits < 12:
            assert len(book.decode(indices).unique(dim=0)) == 2**bits


@pytest.mark.parametrize("name", ["fsq", "lfq"])
@pytest.mark.parametrize("size", [2, 100])
def test_sizes_without_bits_are_refused(name, size, tmp_path):
    with pytest.raises(ValueError, match=f"power of two of at least 4, got K = {size}"):
        peer(name, 4, size)
    result = command(*arguments(quantizer=name, codebook_size=size, out=tmp_path / "run"))
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: fsq and lfq need a power of two of at least 4, got K")
    assert not (tmp_path / "run").exists()


def test_training_starts_their_k_means_on_standardised_latents(tmp_path):
    splits = load_splits("patches", limit_train=64, limit_test=16)
    config = TrainConfig.from_options(
        quantizer="vqp-ema", dataset="patches", hidden_channels=8, residual_channels=8,
        codebook_size=16, batch_size=32,
    )  # fmt: skip
    trainer = Trainer(config, splits, tmp_path)
    level = trainer.model.levels[0]
    assert not level.module._codebook.initted
    trainer.train_step(next(iter(trainer.feed.epoch(0, 0))))
    assert level.module._codebook.initted
    assert 0.3 < level.codebook.std(dim=0).mean() < 1.5  # of latents whose deviation is 1
