"""What codebooks and outputs print: one line each, with what one looks for."""

import math

import pytest
import torch
from small_stacks import KINDS, stack_of

from softvq import CodebookStack, DDCLCodebook, VQCodebook


def test_a_codebook_shows_what_was_set_its_temperature_and_its_steps():
    torch.manual_seed(0)
    codebook = DDCLCodebook(4, 8, noise=0.25)
    codebook.after_step(codebook(torch.randn(20, 4)))
    text = repr(codebook)
    assert text.startswith("DDCLCodebook(dim=4, codebook_size=8, noise=0.25, temperature=")
    assert f"temperature={codebook.temperature.item():.4g} by CodesPerToken(" in text
    assert text.endswith("steps=1)")
    assert "pull" not in text  # as it is by default
    assert repr(VQCodebook(4, 8)) == "VQCodebook(dim=4, codebook_size=8, steps=0)"


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_is_one_line_of_shapes_and_figures(kind):
    stack = stack_of(kind, kind)
    z = torch.randn(3, 5, 4)
    for out in (stack(z), stack.levels[0](z)):
        text = repr(out)
        assert "\n" not in text
        assert len(text) < 200
        assert f"quantized=(3, 5, 4), indices=(3, 5{', 2' if len(out.levels) > 1 else ''})" in text
        assert f"perplexity={out.perplexity.item():.4g}" in text


def test_the_perplexity_is_that_of_the_chosen_codes_without_padding():
    codebook = VQCodebook(1, 4)
    codebook.codebook.data.copy_(torch.arange(4.0)[:, None])
    z = torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0, 3.0])[:, None]
    mask = torch.tensor([True, True, True, True, False, False])
    expected = math.exp(-(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)))
    assert codebook(z, mask).perplexity.item() == pytest.approx(expected)
    assert codebook(z[:0]).perplexity == 1
    stack = CodebookStack([codebook, VQCodebook(1, 1)])
    assert stack(z).perplexity == 1  # of the level that uses fewest
