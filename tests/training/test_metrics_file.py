"""RunLog: lines of metrics.jsonl over crashes and resumes, and the table on the terminal."""

from __future__ import annotations

import pytest
from small_runs import metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.run_log import RunLog, read_metrics, table_header, table_row


def line(epoch: int, split: str = "test", **figures) -> dict:
    return {"epoch": epoch, "step": 10 * epoch, "split": split, "mse_soft": 0.5} | figures


def test_resuming_drops_the_lines_after_the_checkpoint(tmp_path):
    log = RunLog(tmp_path)
    for epoch in (1, 2, 3):
        log.write([line(epoch, "train"), line(epoch)])
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "st')
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 6
    RunLog(tmp_path, step=24).close()
    assert metrics(tmp_path) == [line(1, "train"), line(1), line(2, "train"), line(2)]
    RunLog(tmp_path, step=0).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_what_is_not_a_number_becomes_null(tmp_path):
    log = RunLog(tmp_path)
    log.write([line(1, mse_argmax=float("nan"), temperature_ratio=float("inf"), perplexity=None)])
    log.close()
    [written] = metrics(tmp_path)
    assert written["mse_argmax"] is written["temperature_ratio"] is written["perplexity"] is None
    assert written["mse_soft"] == 0.5
    tags = EventAccumulator(str(tmp_path / "test")).Reload().Tags()["scalars"]
    assert tags == ["reconstruction/mse_soft"]


@pytest.mark.parametrize("missing", [False, True])
def test_the_table_lines_up(missing):
    figures = {
        "loss": 1.23456, "mse_soft": 0.0123456, "mse_argmax": 0.0234567, "psnr_argmax": 21.234,
        "utilization": 0.987, "dead_codes": 7, "perplexity": 431.26, "codes_per_token": 2.345,
        "temperature_ratio": 0.01234, "images_per_second": 1234.5,
    }  # fmt: skip
    if missing:
        figures = dict.fromkeys(figures)
    row = table_row(12, [line(12, "train") | figures, line(12) | figures])
    legend, header = table_header().splitlines()
    assert len(row) == len(header)
    assert "test split" in legend
    expected = "12 1.2346 0.01235 0.02346 21.23 98.7% 7 431.3 2.35 0.0123 1234"
    assert row.split() == (["12"] + ["-"] * 10 if missing else expected.split())
    assert header.split()[:3] == ["epoch", "loss", "soft"]
