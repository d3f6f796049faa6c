"""The picture of reconstructions, through the command line."""

from __future__ import annotations

import numpy as np
from click.testing import CliRunner
from PIL import Image
from small_runs import run_small, without_figures

from eval.__main__ import main
from training.data.splits import load_splits


def test_the_grid_shows_inputs_above_soft_above_argmax(tmp_path, monkeypatch):
    without_figures(monkeypatch)
    run = run_small(tmp_path / "run")
    out = tmp_path / "grid.png"
    arguments = ["grid", str(run), "-o", str(out), "--images", "4", "--scale", "2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    pixels = np.asarray(Image.open(out))
    assert pixels.shape == (2 * (3 * 33 + 1), 2 * (4 * 33 + 1), 3)
    first = load_splits("patches", limit_train=1, limit_test=1).test[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(pixels[2:66:2, 2:66:2], first)


def test_a_grid_of_no_run_is_one_line(tmp_path):
    out = tmp_path / "grid.png"
    result = CliRunner().invoke(main, ["grid", str(tmp_path / "none"), "-o", str(out)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1
    assert not out.exists()
