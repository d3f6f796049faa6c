import pytest
import torch
from torch import nn

from softvq import DDCLCodebook, VQCodebook, VQEMACodebook, two_timescale_groups


class Autoencoder(nn.Module):
    def __init__(self, codebook):
        super().__init__()
        self.encoder, self.codebook, self.decoder = nn.Linear(6, 3), codebook, nn.Linear(3, 6)


@pytest.mark.parametrize("kind", [DDCLCodebook, VQCodebook])
def test_prototypes_get_their_own_rate_and_no_decay(kind):
    model = Autoencoder(kind(3, 8))
    groups = two_timescale_groups(model, lr=1e-3, epsilon=0.05)
    assert [group["name"] for group in groups] == ["model", "codebook"]
    assert [group["lr"] for group in groups] == pytest.approx([1e-3, 2e-2])
    assert groups[1]["params"] == [model.codebook.codebook]
    assert groups[1]["weight_decay"] == 0
    assert "weight_decay" not in groups[0]
    given_out = [id(p) for group in groups for p in group["params"]]
    assert sorted(given_out) == sorted(id(p) for p in model.parameters())


def test_a_step_moves_each_group_at_its_rate():
    model = Autoencoder(DDCLCodebook(3, 8))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(two_timescale_groups(model, lr=0.1, epsilon=0.1), weight_decay=0.5)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for p, old in zip(model.parameters(), before, strict=True):
        prototypes = p is model.codebook.codebook
        expected = old - 1.0 if prototypes else old - 0.1 * (1 + 0.5 * old)
        torch.testing.assert_close(p.detach(), expected)


def test_what_needs_no_gradient_is_left_out():
    model = Autoencoder(VQEMACodebook(3, 8))
    assert [group["name"] for group in two_timescale_groups(model, 1e-3)] == ["model"]
    model = Autoencoder(DDCLCodebook(3, 8))
    model.codebook.freeze()
    model.decoder.bias.requires_grad_(False)
    (group,) = two_timescale_groups(model, 1e-3)
    assert {id(p) for p in group["params"]} == {
        id(p) for p in (*model.encoder.parameters(), model.decoder.weight)
    }
    assert [g["name"] for g in two_timescale_groups(DDCLCodebook(3, 8), 1e-3)] == ["codebook"]


def test_several_codebooks_and_shared_ones():
    shared = DDCLCodebook(3, 8)
    model = nn.ModuleList([shared, shared, VQCodebook(3, 4), nn.Linear(2, 2)])
    model_group, prototypes = two_timescale_groups(model, 1e-3)
    assert len(prototypes["params"]) == 2
    assert len(model_group["params"]) == 2


@pytest.mark.parametrize(("lr", "epsilon"), [(0.0, 0.1), (-1.0, 0.1), (1e-3, 0.0), (1e-3, -0.1)])
def test_wrong_rates(lr, epsilon):
    with pytest.raises(ValueError, match=f"lr={lr}, epsilon={epsilon}"):
        two_timescale_groups(nn.Linear(2, 2), lr, epsilon)


def test_nothing_to_train():
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        two_timescale_groups(VQEMACodebook(3, 8), 1e-3)
