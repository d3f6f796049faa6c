"""README's first example, as printed, beside three lines of vector-quantize-pytorch."""

import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
SOURCE = re.search(r"```python\n(import torch\n.*?)```", README, re.DOTALL).group(1)
PEER = """
class Peer(nn.Module):
    def __init__(self):
        super().__init__()
        self.quantizer = VectorQuantize(
            16, 128, kmeans_init=True, threshold_ema_dead_code=2, accept_image_fmap=True
        )

    def forward(self, z):
        return self.quantizer(z)

    def encode(self, z):
        return self.quantizer(z)[1]

    def decode(self, indices):
        return self.quantizer.get_codes_from_indices(indices)
"""


def run(source):
    torch.manual_seed(0)
    names = {"__name__": "example"}
    exec(compile(source, "example", "exec"), names)
    error = (names["recon"] - names["images"]).square().mean().item()
    return error, names["tracker"].compute().used


def with_peer():
    source = SOURCE.replace("model = Auto", PEER + "\nmodel = Auto")
    source = re.sub(r"DDCLEMCodebook\(.*?\)\n", "Peer()\n", source)
    source = source.replace("attach(model, optimizer)", "")
    return "from vector_quantize_pytorch import VectorQuantize\n" + source


@pytest.fixture(scope="module")
def ours():
    return run(SOURCE)


def test_every_code_is_used(ours):
    assert ours[1] == 128


@pytest.mark.slow
def test_the_error_is_no_larger_than_the_peers(ours):
    pytest.importorskip("vector_quantize_pytorch")
    assert ours[0] <= run(with_peer())[0]
