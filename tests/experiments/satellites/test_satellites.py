"""Clustering of orbits: DDCL's training, choice without labels, scores, files."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.metrics import adjusted_rand_score, balanced_accuracy_score, silhouette_score

from experiments.identity import TOLERANCE, checked_residual
from experiments.satellites import network as network_module
from experiments.satellites import study as study_module
from experiments.satellites.__main__ import main
from experiments.satellites.choice import Fold, choose, scores, silhouette
from experiments.satellites.methods import DDCL, KMEANS, KMEANS_ANY, TRIVIAL, Fit, methods
from experiments.satellites.network import Settings, fit
from experiments.satellites.orbits import CLASS, COLUMNS, NAME, Orbits, features, kepler_period
from experiments.satellites.report import table
from experiments.satellites.study import fold_of, run, split_of
from training.errors import DatasetError, UserError

QUICK = Settings(width=8, warmup_epochs=3, hot_epochs=2, cold_epochs=2, batch_size=64)
REGIMES = {"LEO": (550, 10), "GEO": (35786, 5), "MEO": (20200, 40)}


def write_orbits(path, seed=0, per_class=60):
    """A UCS table of synthetic orbits, three regimes and some ellipses, one row to be dropped."""
    rng = np.random.default_rng(seed)
    rows = []
    for name, (altitude, spread) in REGIMES.items():
        for _ in range(per_class):
            perigee, apogee = sorted(altitude + spread * rng.standard_normal(2))
            rows.append((name, perigee, apogee, rng.uniform(50, 60)))
    for _ in range(per_class // 3):
        rows.append(("Elliptical", rng.uniform(500, 1500), rng.uniform(38e3, 40e3), 63.4))
    lines = ["\t".join([NAME, CLASS, *COLUMNS.values()])]
    for number, (name, perigee, apogee, inclination) in enumerate(rows):
        e = (apogee - perigee) / (2 * 6378.137 + apogee + perigee)
        values = (kepler_period(perigee, apogee), perigee, apogee, e, inclination)
        lines.append("\t".join([f"S{number}", name, *(f"{value:,.5f}" for value in values)]))
    lines.append("\t".join(["lost", "LEO", "", "", "", "", ""]))
    path.write_text("\n".join(lines) + "\n")
    return path


def blobs(count=300, seed=0):
    """Three clouds in five dimensions, and which is whose."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(3, 5, generator=generator)
    labels = torch.arange(count) % 3
    return centres[labels] + 0.1 * torch.randn(count, 5, generator=generator), labels


def test_training_finds_clouds_and_keeps_the_identity(monkeypatch):
    x, labels = blobs()
    settings = Settings(width=16, warmup_epochs=15, hot_epochs=10, cold_epochs=10, batch_size=150)
    fitted = fit(x, 3, settings, seed=0)
    assert adjusted_rand_score(labels, fitted.network.clusters(x)) == 1
    assert [epoch["stage"] for epoch in fitted.history] == ["hot"] * 10 + ["cold"] * 10
    for epoch in fitted.history:
        assert epoch["loss_q"] == pytest.approx(epoch["loss_ols"] + epoch["variance"], rel=1e-9)
        assert epoch["residual"] <= TOLERANCE
        assert epoch["variance"] >= 0
    hot, cold = fitted.history[9], fitted.history[-1]
    assert hot["temperature_ratio"] == pytest.approx(settings.hot[1], rel=1e-4)
    assert cold["temperature_ratio"] == pytest.approx(settings.cold[1], rel=1e-4)
    assert cold["codes_per_token"] < 1.01 < hot["codes_per_token"]
    assert cold["closest"] > 0.1
    monkeypatch.setattr(network_module, "checked_residual", lambda losses: checked_residual(
        losses | {"variance": losses["variance"] * 1.001 + 1e-3}
    ))  # fmt: skip
    with pytest.raises(ArithmeticError, match="is not L_OLS"):
        fit(x[:64], 3, QUICK, seed=0)


@pytest.mark.parametrize("prototypes", ["em", "gradient"])
@pytest.mark.parametrize("standardized", [False, True])
def test_training_is_repeatable_and_leaves_the_random_state_alone(prototypes, standardized):
    x, _ = blobs(64)
    settings = Settings(3, standardized, prototypes, 8, 1, 1, 1)
    before = torch.get_rng_state()
    first, second, other = (fit(x, 4, settings, seed).network for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.latents(x), second.latents(x))
    assert not torch.equal(first.latents(x), other.latents(x))
    assert first.latents(x).shape == (64, 3)


def test_without_a_codebook_reconstruction_alone_is_trained_as_long(monkeypatch):
    epochs = []
    real = network_module.train_epoch

    def counted(*args, use_codebook):
        epochs.append(use_codebook)
        real(*args, use_codebook=use_codebook)

    monkeypatch.setattr(network_module, "train_epoch", counted)
    fitted = fit(blobs(64)[0], 3, QUICK, seed=0, use_codebook=False)
    assert (fitted.hot, fitted.history) == (fitted.network, [])
    alone, epochs[:] = list(epochs), []
    fit(blobs(64)[0], 3, QUICK, seed=0)
    assert alone == [False] * 7
    assert epochs == [False] * 3 + [True] * 4


def test_batches_hold_every_row_once_and_never_one_alone():
    parts = network_module.batches(torch.zeros(129, 2), QUICK)
    assert torch.cat(parts).sort().values.tolist() == list(range(129))
    assert [len(part) for part in parts] == [43, 43, 43]


def test_the_better_silhouette_is_chosen_on_validation_rows_alone():
    rows = np.repeat([[0.0], [1.0], [9.0], [10.0]], 10, axis=0)
    rows += np.random.default_rng(0).normal(0, 0.01, rows.shape)
    fold = Fold({"train": rows[::2], "validation": rows[1::2]}, {})
    seen = []

    def candidate(x, codebook_size, seed, edge):
        seen.append((x.tolist(), codebook_size, seed))
        return Fit({"": lambda new: (new[:, 0] > edge).astype(np.int64)})

    candidates = {name: partial(candidate, edge=e) for name, e in (("bad", 0.5), ("good", 5.0))}
    chosen = choose(candidates, [fold] * 2, 2)
    assert chosen.candidate == "good"
    assert seen == [(rows[::2].tolist(), 2, seed) for seed in (0, 1, 0, 1)]
    expected = silhouette_score(rows[1::2], (rows[1::2, 0] > 5).astype(int))
    assert chosen.silhouettes["good"] == pytest.approx([expected] * 2)
    assert min(chosen.silhouettes["good"]) > max(chosen.silhouettes["bad"])
    for clusters in (np.zeros(20, dtype=int), np.arange(20)):  # one for all, one for each
        assert silhouette(rows[:20], clusters) == -1


def test_splits_are_disjoint_and_the_test_rows_are_those_of_every_seed():
    classes = np.array(["LEO"] * 900 + ["GEO"] * 100)
    first, second = (split_of(classes, 4, seed) for seed in (0, 1))
    assert np.array_equal(first["test"], second["test"])
    assert not np.array_equal(first["train"], second["train"])
    for split in (first, second):
        assert sorted(np.concatenate(list(split.values()))) == list(range(1000))
        assert [len(part) for part in split.values()] == [500, 250, 250]
        assert [int((classes[part] == "GEO").sum()) for part in split.values()] == [50, 25, 25]
    # A class with too few rows for equal shares is no reason to refuse.
    classes[:-1] = "LEO"
    assert [len(part) for part in split_of(classes, 4, 0).values()] == [500, 250, 250]


def test_scales_are_those_of_the_training_rows():
    rng = np.random.default_rng(0)
    elements = np.concatenate([10 ** rng.normal(3, 1, (200, 3)), np.ones((200, 2))], axis=1)
    labels = np.array(["LEO", "GEO"] * 100)
    orbits = Orbits([], elements, labels, {})
    split = split_of(labels, 2, 0)
    fold = fold_of(orbits, split)
    np.testing.assert_allclose(fold.rows["train"].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(fold.rows["train"].std(axis=0), [1, 1, 1, 0, 0], atol=1e-12)
    assert abs(fold.rows["test"].mean(axis=0)[0]) > 1e-6
    assert np.array_equal(fold.classes["test"], labels[split["test"]])
    assert np.corrcoef(fold.rows["test"][:, 0], features(elements)[split["test"], 0])[0, 1] > 0.999


def test_scores_of_a_clustering():
    classes = np.array(["LEO"] * 6 + ["GEO"] * 2 + ["MEO"])
    clusters = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    found = scores(classes, clusters)
    assert found["counts"] == [[0, 0, 2], [4, 2, 0], [0, 0, 1]]
    assert found["sizes"] == {0: 4, 1: 2, 2: 3}
    assert found["accuracy"] == pytest.approx(6 / 9)
    assert found["purity"] == pytest.approx(8 / 9)
    named = [found["mapping"][str(c)] for c in clusters]
    expected = balanced_accuracy_score(classes, named)
    assert found["balanced_accuracy"] == pytest.approx(expected)


def test_methods_are_fitted_without_labels():
    x = blobs(90)[0].double().numpy()
    for name, candidates in methods([QUICK]).items():
        found = next(iter(candidates.values()))(x, 3, 0)
        for assign in found.assigns.values():
            clusters = assign(x[:10])
            assert clusters.shape == (10,)
            assert 0 <= clusters.min() <= clusters.max() < 3
        assert name in found.assigns


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("satellites")
    path, lines = write_orbits(folder / "orbits.csv"), []
    result = run(path, folder / "out", seeds=2, candidates=[QUICK], say=lines.append)
    return folder, result, lines


def test_end_to_end_writes_figures_table_and_picture(results):
    folder, result, lines = results
    written = json.loads((folder / "out" / "satellites.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert (folder / "out" / "satellites.md").read_text() == table(result) + "\n"
    assert (folder / "out" / "satellites.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert result["data"]["classes"] == {"LEO": 60, "GEO": 60, "MEO": 60, "Elliptical": 20}
    assert result["data"]["dropped"] == {"no perigee, apogee or inclination": 1}
    assert result["rows"] == {"train": 100, "validation": 50, "test": 50}
    assert result["identity"]["epochs"] == 2 * (QUICK.hot_epochs + QUICK.cold_epochs)
    assert result["identity"]["largest_residual"] <= TOLERANCE
    assert result["minutes"] > 0
    assert any(
        line.endswith("Gaussian mixture: " + chosen(result, "Gaussian mixture")["chosen"])
        for line in lines
    )


def chosen(result, name):
    return next(entry for entry in result["methods"] if entry["name"] == name)


def test_end_to_end_scores_every_method_on_held_out_rows(results):
    _, result, _ = results
    names = [entry["name"] for entry in result["methods"]]
    assert names[:2] == [DDCL, "DDCL, prototypes not placed anew"]
    assert names[2].endswith("DDCL's latents")
    assert names[3].endswith("of reconstruction alone")
    assert names[-2:] == [KMEANS_ANY, TRIVIAL]
    for entry in result["methods"]:
        assert [one["seed"] for one in entry["runs"]] == [0, 1]
        for one in entry["runs"]:
            assert sum(one["test"]["sizes"].values()) == 50
            assert sum(one["train"]["sizes"].values()) == 100
            assert sum(map(sum, one["test"]["counts"])) == 50
        values = [one["test"]["accuracy"] for one in entry["runs"]]
        assert entry["summary"]["test_accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert chosen(result, KMEANS)["summary"]["test_nmi"]["mean"] > 0.6
    trivial = chosen(result, TRIVIAL)["summary"]
    assert trivial["test_accuracy"]["mean"] == pytest.approx(15 / 50)
    assert trivial["test_balanced_accuracy"]["mean"] == pytest.approx(0.25)
    assert trivial["test_nmi"]["mean"] == pytest.approx(0)
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in table(result).splitlines()]
    assert len(rows) == 2 + len(names) + 3 + len(names)  # scores, then pairings
    assert rows[1 + len(names)][:4] == [TRIVIAL, "1", "-", ".300 ± .000"]
    for entry, cells in zip(result["methods"], rows[-len(names) :], strict=True):
        pairs = entry["runs"][0]["test"]["mapping"].items()
        assert cells == [entry["name"], ", ".join(f"{k} {c}" for k, c in pairs)]


def test_wrong_calls_get_one_clear_line(tmp_path, monkeypatch):
    with pytest.raises(DatasetError, match=r"ucs_satellite_database\.csv\.xz: no such file"):
        run(tmp_path, tmp_path / "out")
    monkeypatch.setenv("SOFTVQ_SHARED", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="is not a folder; name one with --data-dir"):
        run(None, tmp_path / "out")
    path = write_orbits(tmp_path / "orbits.csv", per_class=15)
    with pytest.raises(DatasetError, match="50 objects are too few"):
        run(path, tmp_path / "out", candidates=[QUICK])
    alike = write_orbits(tmp_path / "alike.csv", per_class=100)
    head, *lines = alike.read_text().splitlines()
    alike.write_text("\n".join([head, *(line for line in lines if "\tLEO\t" in line)]) + "\n")
    with pytest.raises(DatasetError, match="all 100 objects are of one class, LEO"):
        run(alike, tmp_path / "out", candidates=[QUICK])
    assert not list(tmp_path.glob("out/*"))
    with pytest.raises(UserError, match="-o /proc/foo"):
        run(path, Path("/proc/foo"))


def test_the_command_passes_its_options_on(tmp_path, monkeypatch):
    seen = {}
    (tmp_path / "satellites.md").write_text("a table\n")
    monkeypatch.setattr(study_module, "run", lambda path, out, **options: seen.update(options))
    done = CliRunner().invoke(main, ["--seeds", "3", "--k", "5", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "a table" in done.output
    assert (seen["seeds"], seen["codebook_size"]) == (3, 5)


@pytest.mark.parametrize(
    ("missing", "message"),
    [([], "-o /proc/foo"), (["sklearn"], 'needs sklearn: pip install -e ".[experiments]"')],
)
def test_a_wrong_call_and_a_missing_package_are_one_line(monkeypatch, missing, message):
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(main, ["-o", "/proc/foo"])
    assert (done.exit_code, len(done.output.splitlines())) == (2, 1)
    assert message in done.output


@pytest.mark.slow
def test_real_regimes_are_found_at_least_as_well_as_by_kmeans(shared, tmp_path):
    result = run(shared / "satellites", tmp_path, seeds=1, candidates=[Settings()])
    ours, theirs = (chosen(result, name)["summary"] for name in (DDCL, KMEANS))
    for figure in ("test_accuracy", "test_balanced_accuracy", "test_nmi"):
        assert ours[figure]["mean"] > theirs[figure]["mean"]
    assert chosen(result, TRIVIAL)["summary"]["test_accuracy"]["mean"] > 0.85
