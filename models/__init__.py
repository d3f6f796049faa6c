"""Convolutional VQ-VAEs on softvq's codebooks; research code of the checkout, not installed."""

from .build import build_model
from .identity import IdentityCodebook
from .layers import ConvDecoder, ConvEncoder
from .tokenizer import ImageTokenizer, ImageTokenizerOutput, Tokens
from .vqvae import VQVAE
from .vqvae2 import VQVAE2

__all__ = [
    "VQVAE",
    "VQVAE2",
    "ConvDecoder",
    "ConvEncoder",
    "IdentityCodebook",
    "ImageTokenizer",
    "ImageTokenizerOutput",
    "Tokens",
    "build_model",
]
