"""The four plain models of plain_models.py: data (B, ...) to latents (B, N, D) and back."""

from __future__ import annotations

import math
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM = 16


class ConvImages(nn.Module):
    """CIFAR-10 images (B, 3, 32, 32) to 64 latents."""

    batch = 32

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(64, DIM, 1),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Conv2d(DIM, 64, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
        )  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).flatten(2).mT  # (B, 64, D)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z.mT.unflatten(2, (8, 8)))

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        from training.data.splits import load_splits

        splits = load_splits("auto", limit_train=6000, limit_test=1000, announce=click.echo)
        return splits.train.float() / 255, splits.test.float() / 255


class Sounds(nn.Module):
    """Sounds (B, 1, 512), decaying harmonics with noise, to 64 latents."""

    batch = 32

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv1d(1, 32, 8, 4, 2), nn.GELU(), nn.Conv1d(32, 64, 4, 2, 1), nn.GELU(),
            nn.Conv1d(64, DIM, 1),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Conv1d(DIM, 64, 3, 1, 1), nn.GELU(), nn.ConvTranspose1d(64, 32, 4, 2, 1), nn.GELU(),
            nn.ConvTranspose1d(32, 1, 8, 4, 2),
        )  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).mT  # (B, 64, D)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z.mT)

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator)

        count, time_axis = 5000, torch.arange(512.0)
        pitch = 0.02 * 16 ** uniform(count, 1, 1)  # radians a sample, four octaves
        number = torch.arange(1, 5)[:, None]  # (4, 1)
        weights = uniform(count, 4, 1) / number
        phases = 2 * math.pi * uniform(count, 4, 1)
        waves = (weights * torch.sin(pitch * number * time_axis + phases)).sum(dim=1, keepdim=True)
        waves = waves * torch.exp(-time_axis / (50 + 400 * uniform(count, 1, 1)))
        waves = waves + 0.02 * torch.randn(waves.shape, generator=generator)
        return waves[:4000], waves[4000:]


class PatchTransformer(nn.Module):
    """CIFAR-10 images as 64 patches of 4 x 4 pixels, a transformer on both sides."""

    batch = 32
    data = ConvImages.data

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(64, 64))
        self.to_width, self.to_code = nn.Linear(48, 64), nn.Linear(64, DIM)
        self.from_code, self.to_pixels = nn.Linear(DIM, 64), nn.Linear(64, 48)
        layer = dict(d_model=64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.before, self.after = (nn.TransformerEncoderLayer(**layer) for _ in range(2))

    def encode(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=4).mT  # (B, 64, 48)
        return self.to_code(self.before(self.to_width(patches) + self.place))

    def decode(self, z: Tensor) -> Tensor:
        patches = self.to_pixels(self.after(self.from_code(z) + self.place))  # (B, 64, 48)
        return F.fold(patches.mT, 32, 4, stride=4)


class Rows(nn.Module):
    """Rows of a table (B, 64), handwritten digits of scikit-learn, to four latents each."""

    batch = 256

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4 * DIM))
        self.up = nn.Sequential(nn.Linear(4 * DIM, 128), nn.ReLU(), nn.Linear(128, 64))

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x).unflatten(1, (4, DIM))

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z.flatten(1))

    @staticmethod
    def data() -> tuple[Tensor, Tensor]:
        from sklearn.datasets import load_digits

        rows = torch.from_numpy(load_digits().data).float()
        rows = (rows - rows.mean()) / rows.std()
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
        return rows[:1400], rows[1400:]


MODELS: dict[str, Any] = {
    "conv images": ConvImages,
    "sounds": Sounds,
    "patch transformer": PatchTransformer,
    "rows": Rows,
}
