"""Convolutional VQ-VAEs on softvq's codebooks; research code of the checkout, not installed."""

from .build import build_model
from .identity import IdentityCodebook
from .layers import ConvDecoder, ConvEncoder
from .vqvae import VQVAE, VQVAEOutput

__all__ = [
    "VQVAE",
    "ConvDecoder",
    "ConvEncoder",
    "IdentityCodebook",
    "VQVAEOutput",
    "build_model",
]
