"""Captured graphs: torch.compile, torch.export, ONNX."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Any

import torch
from adapters import Adapter, UnavailableError
from registry import check, latents, same
from torch import Tensor, nn


class Call(nn.Module):
    """A codebook's call as a module that returns plain tensors."""

    def __init__(self, adapter: Adapter, module: nn.Module) -> None:
        super().__init__()
        self.adapter, self.inner = adapter, module

    def forward(self, z: Tensor) -> Any:
        quantized, indices, loss = self.adapter.quantize(self.inner, z)
        return (quantized, indices) if loss is None else (quantized, indices, loss)


class Tokens(nn.Module):
    """Encoding and decoding as one module."""

    def __init__(self, adapter: Adapter, module: nn.Module) -> None:
        super().__init__()
        self.adapter, self.inner = adapter, module

    def forward(self, z: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.adapter.encode(self.inner, z), self.adapter.decode(self.inner, indices)


@check("torch.compile(fullgraph=True) in train mode")
def compiles(adapter: Adapter) -> None:
    z = latents(2, 6)
    torch._dynamo.reset()
    compiled = torch.compile(Call(adapter, adapter.build()), fullgraph=True, backend="eager")
    assert same(compiled(z), Call(adapter, adapter.build())(z)), "other outputs"


@check("torch.export in eval mode, {}", "one batch size", "any batch size")
def exports(adapter: Adapter, case: str) -> None:
    module = Call(adapter, adapter.build().eval())
    fixed = case == "one batch size"
    shapes = None if fixed else ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(module, (latents(3, 6),), dynamic_shapes=shapes).module()
    for size in (3,) if fixed else (1, 5):
        z = latents(size, 6)
        assert same(program(z), module(z)), "other outputs"


@check("ONNX: encoding and decoding images, any batch size, in onnxruntime")
def onnx(adapter: Adapter) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if not find_spec(package):
            raise UnavailableError(f"{package} is not installed")
    import onnxruntime

    module = Tokens(adapter, adapter.build(2, channel_first=True)).eval()
    z = latents(3, 2, 2).movedim(-1, 1)
    inputs = (z, adapter.encode(module.inner, z))
    batch = {0: torch.export.Dim.DYNAMIC}
    program = torch.onnx.export(
        module, inputs, dynamo=True, dynamic_shapes=(batch, batch), verbose=False
    )
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    for size in (1, 5):
        z = latents(size, 2, 2, seed=size).movedim(-1, 1)
        indices = adapter.encode(module.inner, z)
        feed = dict(zip(names, (z.numpy(), indices.numpy()), strict=True))
        encoded, decoded = (torch.from_numpy(value) for value in session.run(None, feed))
        assert torch.equal(encoded, indices), "other indices"
        assert torch.equal(decoded, adapter.decode(module.inner, indices)), "other codes"
