"""Whoever forgets to start and to step a codebook hears of it, once; nobody else does."""

import pytest
import torch
from torch import nn

from softvq import (
    CodebookStack,
    DDCLCodebook,
    DDCLEMCodebook,
    VQCodebook,
    VQEMACodebook,
    attach,
)

KINDS = (DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook)


def trained_by_hand(codebook, calls=()):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), codebook)
    optimizer = torch.optim.Adam(model.parameters())
    if "attach" in calls:
        attach(model, optimizer)
    if "initialize" in calls:
        codebook.initialize(model[0](torch.randn(64, 6)))
    for _ in range(20):
        out = model(torch.randn(64, 6))
        optimizer.zero_grad()
        (out.quantized.square().mean() + out.loss).backward()
        optimizer.step()
        if "after_step" in calls:
            codebook.after_step(out)
    return model


def wholes():
    stack = CodebookStack([DDCLEMCodebook(4, 8), DDCLEMCodebook(4, 8)])
    return [*(kind(4, 8) for kind in KINDS), stack]


@pytest.mark.parametrize("number", range(len(KINDS) + 1))
def test_forgetting_both_calls_warns_exactly_once(number, tmp_path):
    model = trained_by_hand(wholes()[number])

    def use():
        for _ in range(2):
            model.eval()[1].encode(torch.randn(5, 4))
            model[1].save_pretrained(tmp_path)
            model.train()(torch.randn(5, 6))

    with pytest.warns(UserWarning, match=r"call softvq\.attach\(model, optimizer\)") as told:
        use()
    assert len(told) == 1
    assert told[0].filename == __file__  # the line that asked for tokens


@pytest.mark.parametrize("calls", [("attach",), ("initialize",), ("after_step",)])
def test_a_codebook_that_was_started_or_stepped_does_not_warn(calls, tmp_path):
    for whole in wholes():
        model = trained_by_hand(whole, calls).eval()
        model[1].encode(torch.randn(5, 4))
        model[1].save_pretrained(tmp_path)


def test_a_frozen_codebook_and_one_that_was_never_trained_do_not_warn(tmp_path):
    for whole in wholes():
        whole.eval().encode(torch.randn(5, 4))
        whole.save_pretrained(tmp_path)
        whole.train().freeze()
        trained_by_hand(whole).eval()
        whole.encode(torch.randn(5, 4))
