"""A diffusers VQModel whose quantizer is softvq's.

    python examples/diffusers_vqmodel.py

Needs diffusers and scikit-learn.
"""

from __future__ import annotations

import torch
from diffusers import VQModel
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from softvq import Codebook, CodebookOutput, DDCLCodebook, two_timescale_groups


class Quantizer(nn.Module):
    """What ``VQModel`` asks of its ``quantize``: soft codes in training, tokens in evaluation."""

    def __init__(self, codebook: Codebook) -> None:
        super().__init__()
        self.codebook = codebook
        self.out: CodebookOutput | None = None

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, loss and tokens, in VQModel's order."""
        self.out = self.codebook(z, hard=not self.training)
        return self.out.quantized, self.out.loss, self.out.indices


def build() -> VQModel:
    """8x8 images, 4x4 tokens of 32 codes."""
    model = VQModel(
        in_channels=1,
        out_channels=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        norm_num_groups=4,
        mid_block_add_attention=False,
    )
    model.quantize = Quantizer(DDCLCodebook(dim=4, codebook_size=32, channel_first=True))
    return model


def main() -> tuple[VQModel, Tensor, list[float]]:
    """Train; the model, images, and the errors."""
    torch.manual_seed(0)
    images = torch.from_numpy(load_digits().images[:128]).float()[:, None] / 8 - 1
    model = build()
    codebook = model.quantize.codebook
    codebook.initialize(model.encode(images).latents)
    optimizer = torch.optim.Adam(two_timescale_groups(model, lr=2e-3))
    errors = []
    for step in range(50):
        batch = images[step % 4 :: 4]
        result = model(batch)
        error = F.mse_loss(result.sample, batch)
        optimizer.zero_grad()
        (error + result.commit_loss).backward()
        optimizer.step()
        codebook.after_step(model.quantize.out)
        errors.append(error.item())
    print(f"error {errors[0]:.3f} to {errors[-1]:.3f}")
    return model.eval(), images, errors


if __name__ == "__main__":
    main()
