"""ProductCodebook: its groups on their slices, in stacks, attached, on disk."""

import copy

import pytest
import torch
from small_stacks import KINDS, state_bytes
from torch import nn

from softvq import (
    CodebookStack,
    DDCLCodebook,
    DDCLEMCodebook,
    ProductCodebook,
    VQCodebook,
    VQEMACodebook,
    attach,
)


def product_of(kind, dims=(3, 5), size=9, channel_first=False):
    torch.manual_seed(0)
    options = {"noise": 0.0} if kind is DDCLCodebook else {}
    groups = [kind(dim, size, **options) for dim in dims]
    product = ProductCodebook(groups, channel_first=channel_first)
    z = torch.randn(12, sum(dims), 8) if channel_first else torch.randn(12, 8, sum(dims))
    product.initialize(z)
    return product


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_group_codes_its_own_slice(kind, hard):
    product = product_of(kind)
    z, mask = torch.randn(4, 6, 8), torch.rand(4, 6) > 0.3
    out = product(z, mask, hard=hard)
    outs = [
        group(part, mask, hard=hard)
        for group, part in zip(product.groups, (z[..., :3], z[..., 3:]), strict=True)
    ]
    assert torch.equal(out.quantized, torch.cat([own.quantized for own in outs], dim=-1))
    assert torch.equal(out.indices, torch.stack([own.indices for own in outs], dim=-1))
    for name in ("loss_q", "loss_ols", "variance"):  # means over the whole vector's elements
        expected = (3 * outs[0].losses[name] + 5 * outs[1].losses[name]) / 8
        torch.testing.assert_close(out.losses[name], expected)
    torch.testing.assert_close(out.loss, (3 * outs[0].loss + 5 * outs[1].loss) / 8)
    assert torch.equal(product.encode(z, mask), out.indices)
    first, second = product.groups
    nearest = first.decode(first.encode(z[..., :3])), second.decode(second.encode(z[..., 3:]))
    assert torch.equal(product.decode(product.encode(z)), torch.cat(nearest, dim=-1))


def test_the_squared_error_of_a_product_is_the_loss_of_its_vector():
    product = product_of(VQEMACodebook)
    z = torch.randn(50, 8)
    out = product(z)
    torch.testing.assert_close(out.losses["loss_q"], (z - out.quantized).square().mean())


def test_channels_come_first_where_they_are_said_to():
    product = product_of(VQCodebook, channel_first=True)
    z = torch.randn(2, 8, 4, 5)
    out = product(z)
    assert out.quantized.shape == z.shape
    assert out.indices.shape == (2, 4, 5, 2)
    assert torch.equal(product.decode(out.indices), out.quantized)
    product.channel_first = False
    assert torch.equal(product(z.movedim(1, -1)).quantized.movedim(-1, 1), out.quantized)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_of_products_is_grouped_residual_quantisation(kind):
    stack = CodebookStack([product_of(kind, (2, 2)), product_of(kind, (2, 2))])
    z = torch.randn(40, 6, 4)
    stack.initialize(z)
    out = stack(z, hard=True)
    residual, total, indices = z, torch.zeros_like(z), []
    for level in stack.levels:
        codes = []
        for group, part in zip(level.groups, residual.split(2, dim=-1), strict=True):
            distances = torch.cdist(part, group.codebook.detach()[None])
            indices.append(distances.argmin(dim=-1))
            codes.append(group.codebook.detach()[indices[-1]])
        code = torch.cat(codes, dim=-1)
        residual, total = residual - code, total + code
    expected = torch.stack([torch.stack(indices[:2], -1), torch.stack(indices[2:], -1)], dim=-2)
    assert torch.equal(out.indices, expected)  # (40, 6, L, G)
    torch.testing.assert_close(out.quantized, total)
    assert torch.equal(stack.encode(z), expected)
    torch.testing.assert_close(stack.decode(expected), total)
    coarse = stack.levels[0].decode(expected[..., 0, :])
    torch.testing.assert_close(stack.decode(expected[..., :1, :]), coarse)
    before = state_bytes(stack)
    stack.after_step(stack(z))
    assert state_bytes(stack) != before
    assert [int(book.steps) for book in stack.codebooks] == [1] * 4


def test_a_product_stands_beside_a_pyramid_of_plain_levels():
    stack = CodebookStack([VQEMACodebook(4, 5), product_of(VQEMACodebook, (2, 2), 5)], [2, 1])
    z = torch.randn(8, 4, 4, 4)
    stack.initialize(z)
    out = stack(z)
    assert [tuple(indices.shape) for indices in out.indices] == [(8, 2, 2), (8, 4, 4, 2)]
    torch.testing.assert_close(stack.decode(stack.encode(z)), out.quantized)


@pytest.mark.parametrize("kind", [DDCLEMCodebook, VQCodebook, VQEMACodebook])
def test_straight_through_groups_pass_the_decoder_s_gradient_once(kind):
    stack = CodebookStack([product_of(kind, (2, 2)), product_of(kind, (2, 2))])
    for whole in (product_of(kind, (2, 2)), stack):
        z = torch.randn(10, 3, 4, requires_grad=True)
        gradient = torch.randn(10, 3, 4)
        whole(z).quantized.backward(gradient)
        torch.testing.assert_close(z.grad, gradient)


def test_attach_starts_and_steps_every_group():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), ProductCodebook([DDCLCodebook(4, 8) for _ in range(2)]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    attach(model, optimizer)
    for _ in range(5):
        out = model(torch.randn(200, 6))
        (out.quantized.square().mean() + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [int(group.steps) for group in model[1].groups] == [5, 5]
    assert all(group.initialized for group in model[1].groups)
    first, second = (group.codebook for group in model[1].groups)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["folder", "file.safetensors"])
def test_a_product_and_a_stack_of_them_are_saved_and_loaded(name, tmp_path):
    for whole in (product_of(DDCLEMCodebook), CodebookStack([product_of(VQCodebook)])):
        whole.save_pretrained(tmp_path / name)
        loaded = type(whole).from_pretrained(tmp_path / name)
        z = torch.randn(7, 8)
        assert torch.equal(loaded.encode(z), whole.encode(z))
        assert state_bytes(loaded) == state_bytes(whole)
    with pytest.raises(TypeError, match="holds a CodebookStack, not a ProductCodebook"):
        ProductCodebook.from_pretrained(tmp_path / name)


def test_a_state_of_other_groups_is_refused():
    with pytest.raises(RuntimeError, match="is that of a VQCodebook, not of a VQEMACodebook"):
        product_of(VQEMACodebook).load_state_dict(product_of(VQCodebook).state_dict())


def test_frozen_groups_stay_and_copies_are_their_own():
    product = product_of(DDCLEMCodebook)
    copied = copy.deepcopy(product)
    before = state_bytes(product)
    product.freeze()
    product.after_step(product(torch.randn(30, 8)))
    assert state_bytes(product) == before
    copied.after_step(copied(torch.randn(30, 8)))
    assert state_bytes(copied) != before
    assert state_bytes(product) == before


def test_all_groups_move_or_none():
    product = product_of(VQEMACodebook)
    z = torch.randn(30, 8)
    z[3, 7] = torch.nan  # of the second group
    before = state_bytes(product)
    with pytest.raises(FloatingPointError):
        product.after_step(product(z))
    assert state_bytes(product) == before


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ProductCodebook([]), ValueError, "at least one group"),
        (lambda: ProductCodebook([VQCodebook(2, 3)] * 2), ValueError, "codebook of its own"),
        (lambda: ProductCodebook([nn.Identity()]), TypeError, "got a Identity"),
        (lambda: ProductCodebook([VQCodebook(2, 3, channel_first=True)]), ValueError, "channel_f"),
        (lambda: product_of(VQCodebook)(torch.randn(3, 7)), ValueError, "D = dim = 8"),
        (lambda: product_of(VQCodebook).decode(torch.zeros(3, 3).long()), ValueError, "G = 2"),
        (lambda: product_of(VQCodebook).decode(torch.full((3, 2), 9)), IndexError, r"\[0, 9\)"),
    ],
)
def test_wrong_calls_are_told_what_to_give(build, error, message):
    with pytest.raises(error, match=message):
        build()
