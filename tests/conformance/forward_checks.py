"""What a call returns: layouts, dtypes, masks, decoding."""

from __future__ import annotations

import copy

import torch
from adapters import DIM, Adapter, NotApplicableError
from registry import check, latents, loss_of, same, training_step
from torch import Tensor


@check("`quantized, indices, loss = codebook(z)`")
def unpacks_to_three(adapter: Adapter) -> None:
    if not adapter.three:
        raise NotApplicableError("returns codes and indices")
    quantized, indices, loss = adapter.quantize(adapter.build(), latents(2, 6))
    assert quantized.shape == (2, 6, DIM), "codes of another shape"
    assert indices.shape == (2, 6), "indices of another shape"
    assert loss.shape == (), "loss is no scalar"


LAYOUTS = {
    "(B, D)": ((3,), False),
    "(B, N, D)": ((2, 6), False),
    "(B, D, N)": ((2, 6), True),
    "(B, D, H, W)": ((2, 2, 3), True),
    "(B, H, W, D)": ((2, 2, 3), False),
    "(B, D, T, H, W)": ((2, 2, 3, 2), True),
    "(B, D, S, T, H, W)": ((2, 2, 3, 2, 2), True),
}


@check("layout {}", *LAYOUTS)
def layout(adapter: Adapter, case: str) -> None:
    shape, channel_first = LAYOUTS[case]
    z = latents(*shape)
    plain = adapter.build().eval()
    expected = adapter.quantize(plain, z.reshape(1, -1, DIM))
    module = adapter.build(len(shape) - 1, channel_first).eval()
    if channel_first:
        z = z.movedim(-1, 1)
    quantized, indices, _ = adapter.quantize(module, z)
    assert quantized.shape == z.shape, f"codes of shape {tuple(quantized.shape)}"
    assert indices.shape == shape, f"indices of shape {tuple(indices.shape)}"
    assert torch.equal(indices.flatten(), expected[1].flatten()), "other indices than as (B, N, D)"
    codes = adapter.decode(module, indices)
    assert codes.shape == z.shape, f"decodes to shape {tuple(codes.shape)}"
    codes = codes.movedim(1, -1) if channel_first else codes
    assert torch.equal(codes.reshape(1, -1, DIM), adapter.decode(plain, expected[1])), (
        "decodes to other codes than as (B, N, D)"
    )


@check("an empty batch")
def empty(adapter: Adapter) -> None:
    module = adapter.build()
    quantized, indices, loss = adapter.quantize(module, latents(0, 6))
    assert (quantized.shape, indices.shape) == ((0, 6, DIM), (0, 6)), "other shapes"
    assert loss is None or loss.isfinite(), "loss is not finite"


@check("a wrong vector size raises")
def wrong_size(adapter: Adapter) -> None:
    try:
        adapter.quantize(adapter.build(), torch.zeros(2, 6, DIM + 1))
    except Exception:
        return
    raise AssertionError("no error")


@check("dtype {}", "float16", "bfloat16", "float64")
def dtype(adapter: Adapter, case: str) -> None:
    narrow = getattr(torch, case)
    wide = torch.promote_types(narrow, torch.float32)
    z = latents(4, 50).to(narrow)
    module = adapter.build()
    try:
        adapter.quantize(copy.deepcopy(module), z)
    except (RuntimeError, TypeError):
        # Then the user's model.to(dtype) has to do.
        module.to(narrow)
    expected = adapter.quantize(copy.deepcopy(module).to(wide).eval(), z.to(wide))
    out = adapter.quantize(copy.deepcopy(module).eval(), z)
    assert out[0].dtype == narrow, f"codes are {out[0].dtype}"
    assert torch.equal(out[1], expected[1]), f"other indices than for the same latents as {wide}"
    out, gradient, _, _ = training_step(adapter, module, z)
    assert gradient.isfinite().all(), "gradient is not finite"
    assert out[2] is None or out[2].isfinite(), "loss is not finite"


@check("CPU autocast to bfloat16 changes no index")
def autocast(adapter: Adapter) -> None:
    module, z = adapter.build().eval(), latents(20, 100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        indices = adapter.quantize(module, z)[1]
    assert torch.equal(indices, adapter.quantize(module, z)[1]), "other indices"


@check("the nearest code is found 1,000 off the origin")
def off_centre(adapter: Adapter) -> None:
    prototypes, z = latents(adapter.size) + 1000, latents(64, seed=2) + 1000
    module = adapter.place(prototypes).eval()
    exact = torch.cdist(
        z.double(), prototypes.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).argmin(dim=1)
    wrong = (adapter.quantize(module, z[None])[1][0] != exact).sum()
    assert wrong == 0, f"{wrong} of {len(z)} indices are wrong"


def masked(fill: float) -> tuple[Tensor, Tensor]:
    mask = torch.tensor([[True] * 6, [True, True, False, True, False, False]])
    return torch.where(mask[..., None], latents(2, 6), fill), mask


@check("padding of {} changes no bit of a training step", "NaN", "inf", "1e30")
def padding(adapter: Adapter, case: str) -> None:
    runs = [training_step(adapter, adapter.build(), *masked(fill)) for fill in (0.0, float(case))]
    (plain, gradient, gradients, after), filled = runs
    assert same(plain, filled[0]), "changes codes, indices or loss"
    assert torch.equal(gradient, filled[1]), "changes the latents' gradient"
    assert all(
        a is b is None or torch.equal(a, b) for a, b in zip(gradients, filled[2], strict=True)
    ), "changes a parameter's gradient"
    assert after == filled[3], "changes the state"


@check("padding leaves the loss of the other tokens")
def padding_loss(adapter: Adapter) -> None:
    z, mask = masked(5.0)
    loss = loss_of(adapter, adapter.quantize(adapter.build(), z, mask))
    alone = adapter.quantize(adapter.build(), z[mask][None])[2]
    assert torch.allclose(loss, alone), f"{loss:.4f} instead of {alone:.4f}"


@check("padding has index -1, which decodes to the zeros of the forward")
def padding_index(adapter: Adapter) -> None:
    module = adapter.build().eval()
    z, mask = masked(5.0)
    quantized, indices, _ = adapter.quantize(module, z, mask)
    assert (indices[~mask] == -1).all(), "other indices"
    assert not quantized[~mask].any(), "codes that are not zero"
    assert not adapter.decode(module, indices)[~mask].any(), "-1 decodes to a code"


@check("decoding an index outside the codebook raises")
def out_of_range(adapter: Adapter) -> None:
    for index in (adapter.size, -2):
        try:
            adapter.decode(adapter.build(), torch.tensor([[0, index]]))
        except Exception:
            continue
        raise AssertionError(f"decodes index {'K' if index > 0 else index}")


@check("decoded indices are the forward's codes, {}", "train", "eval")
def round_trip(adapter: Adapter, case: str) -> None:
    module, z = adapter.build().train(case == "train"), latents(4, 20)
    encoded = adapter.encode(copy.deepcopy(module), z)
    codes, indices = adapter.hard(module, z)
    assert torch.equal(encoded, indices), "encoding gives other indices"
    difference = (adapter.decode(module, indices) - codes).abs().max()
    assert difference < 1e-5, f"differ by {difference:.2g}"
