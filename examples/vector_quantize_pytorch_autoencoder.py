"""An image autoencoder written for vector-quantize-pytorch: the import and the constructor changed.

    python examples/vector_quantize_pytorch_autoencoder.py

Needs scikit-learn, for its 8x8 digits. ``DDCLCodebook`` and ``VQEMACodebook`` want two calls more,
``initialize`` before and ``after_step`` during training, as in the other examples.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

# from vector_quantize_pytorch import VectorQuantize
from softvq import VQCodebook


class Autoencoder(nn.Module):
    """8x8 images to 4x4 tokens and back."""

    def __init__(self, dim: int = 8, codebook_size: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2, padding=1), nn.GELU(), nn.Conv2d(32, dim, 1)
        )
        # self.vq = VectorQuantize(dim=dim, codebook_size=codebook_size, accept_image_fmap=True)
        self.vq = VQCodebook(dim=dim, codebook_size=codebook_size, channel_first=True)
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, 32, 3, padding=1), nn.GELU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructions, token indices (B, 4, 4), and the codebook's loss."""
        quantized, indices, commit_loss = self.vq(self.encoder(images))
        return self.decoder(quantized), indices, commit_loss


def digits() -> Tensor:
    """(1797, 1, 8, 8) in [0, 1]."""
    images = torch.from_numpy(load_digits().images).float()
    return images[:, None] / 16


def train(model: Autoencoder, images: Tensor, steps: int) -> list[float]:
    """Reconstruction errors, step by step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    errors = []
    for _ in range(steps):
        batch = images[torch.randint(len(images), (64,))]
        optimizer.zero_grad()
        reconstruction, _, commit_loss = model(batch)
        error = F.mse_loss(reconstruction, batch)
        (error + commit_loss).backward()
        optimizer.step()
        errors.append(error.item())
    return errors


def main() -> tuple[list[float], Tensor]:
    """Train; the errors, and the tokens of all images."""
    torch.manual_seed(0)
    images, model = digits(), Autoencoder()
    errors = train(model, images, steps=200)
    with torch.no_grad():
        _, indices, _ = model(images)
    print(f"error {errors[0]:.3f} to {errors[-1]:.3f}, {len(indices.unique())} of 16 codes used")
    return errors, indices


if __name__ == "__main__":
    main()
