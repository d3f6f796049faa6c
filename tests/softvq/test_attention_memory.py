"""Memory of the attention engine: blocks, and the peak of a step."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softvq._internal import arithmetic

PEAK = """
import re
import torch
import torch._dynamo  # What an optimiser imports as well.
from softvq.functional import soft_quantize_attention

def resident(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

torch.set_num_threads(1)
z, p = (torch.randn(n, 64, requires_grad=True) for n in (4096, 8192))
(z[:64] @ p[:64].mT).sum().backward()
before = resident("VmRSS")
code = soft_quantize_attention(z, p, 10.0)
(code.quantized.square().sum() + code.loss_q.sum() + code.usage_kl).backward()
print(resident("VmHWM") - before)
"""


def test_blocks_are_bounded_whatever_the_number_of_prototypes():
    for device in ("cpu", "cuda", "mps"):
        for size in (1, 512, 8192, 2**18):
            rows = arithmetic._rows_per_block(torch.device(device), size)
            assert rows >= 64
            assert rows * size <= max(2**22, 64 * size)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_far_below_one_assignment_matrix():
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=root, capture_output=True, text=True, check=True
    )
    # One (N, K) matrix is 128 MiB, and the dense engine holds four.
    assert float(done.stdout) < 64
