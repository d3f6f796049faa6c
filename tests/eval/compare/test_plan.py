"""The runs of a comparison: which can be, which are there already."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from small_plans import plan_of

from eval.compare.plan import finished, parse_settings
from eval.compare.report import compare
from training.errors import UserError


@pytest.mark.parametrize(
    ("quantizers", "changes", "words"),
    [
        ("vq-ema vqema", {}, "quantizer must be one of"),
        ("vq ddcl vq", {}, "each quantizer and each learning rate once"),
        ("vq", {"lrs": (0.001, 0.001)}, "each quantizer and each learning rate once"),
        ("vq", {"lrs": (0.001, -1.0)}, "lr must be more than 0"),
        ("vq:paper", {}, "train.py has no option 'paper'"),
        ("vq:balance=0.5", {}, "--balance is for ddcl-em and ddcl, not for vq"),
        ("ddcl-em:balance=2", {}, r"balance must lie in \[0, 1\], got 2"),
        ("ddcl:lr=0.1", {}, "lr is what the command itself sets, got 'lr=0.1'"),
        ("ddcl:balanse=0", {}, "no option 'balanse': did you mean balance?"),
        ("ddcl-em vq", {"balance": 0.5}, r"leave it out; or give .* vq-ema:decay=0\.9"),
        ("ddcl-em", {"epsilon": 0.5}, "--epsilon is for ddcl and vq, not for ddcl-em"),
        ("ddcl lfq", {"codebook_size": 24}, "power of two of at least 4, got K = 24"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_before_it_starts(
    tmp_path, trained, quantizers, changes, words
):
    with pytest.raises(UserError, match=words):
        compare(plan_of(tmp_path, *quantizers.split(), **changes))
    assert trained == []


def test_runs_of_other_versions_or_images_are_refused(tmp_path, trained):
    plan = plan_of(tmp_path, "vq", "vq-ema")
    compare(plan)
    path = plan.folder("vq-ema", 0.002, 0) / "config.json"
    config = json.loads(path.read_text())
    other = replace(plan, options=plan.options | {"dataset": "cifar10"})
    with pytest.raises(UserError, match="dataset patches, this comparison asks for cifar10"):
        compare(other)
    path.write_text(json.dumps(config | {"dataset": "cifar10"}))
    auto = replace(plan, options=plan.options | {"dataset": "auto"})
    with pytest.raises(UserError, match="different images, cifar10 and patches"):
        compare(auto)
    path.write_text(json.dumps({name: config[name] for name in config if name != "shared_scale"}))
    with pytest.raises(UserError, match="by a version without shared_scale"):
        compare(plan)
    path.write_text(json.dumps(config)[:50])
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        compare(plan)


def test_a_quantizer_with_options_of_its_own(tmp_path, trained):
    names = ("ddcl-em", "ddcl-em:balance=0:commitment=0.3", "vq-ema:decay=0.5")
    plan = plan_of(tmp_path, *names)
    result = compare(plan)
    assert set(result["quantizers"]) == set(names)
    assert trained == [
        "ddcl-em-lr0.002-seed0", "ddcl-em-balance-0-commitment-0.3-lr0.002-seed0",
        "vq-ema-decay-0.5-lr0.002-seed0",
    ]  # fmt: skip
    configs = [plan.config(name, 0.002, 0) for name in names]
    own = [config.quantizer.options for config in configs]
    assert own == [{}, {"balance": 0, "commitment": 0.3}, {"decay": 0.5}]
    for name, config in zip(names, configs, strict=True):
        saved = json.loads((plan.folder(name, 0.002, 0) / "config.json").read_text())
        assert saved == json.loads(config.to_json())


def test_a_line_cut_off_by_a_kill_is_no_finished_epoch(tmp_path, trained):
    plan = plan_of(tmp_path, "vq-ema")
    run = ("vq-ema", 0.002, 0)
    assert not finished(plan, *run)
    compare(plan)
    with pytest.raises(UserError, match="codebook_size 16, this comparison asks for 9"):
        compare(plan_of(tmp_path, "vq-ema", codebook_size=9))
    assert len(trained) == 1
    metrics = plan.folder(*run) / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-20])
    assert not finished(plan, *run)


def test_settings_have_the_types_of_their_options():
    assert parse_settings(["commitment=1e-3", "batch-size=5", "init=random", "compile=true"]) == {
        "commitment": 1e-3,
        "batch_size": 5,
        "init": "random",
        "compile": True,
    }
    with pytest.raises(UserError, match="is what the command itself sets"):
        parse_settings(["steps=5"])
    with pytest.raises(UserError, match="compile needs true or false, got 'yes'"):
        parse_settings(["compile=yes"])


def test_comparisons_of_the_last_version_load(tmp_path, trained):
    """There, ddcl with the recipe tokens was what ddcl-em is."""
    plan = plan_of(tmp_path, "ddcl-em")
    result = compare(plan)
    path = plan.folder("ddcl-em", 0.002, 0) / "config.json"
    old = {"quantizer": "ddcl", "recipe": "tokens", "decay": 0.99, "balance": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | old))
    assert compare(plan) == result
    path.parent.rename(plan.folder("ddcl", 0.002, 0))
    with pytest.raises(UserError, match="quantizer ddcl-em, this comparison asks for ddcl"):
        compare(replace(plan, quantizers=("ddcl",)))
    assert len(trained) == 1
