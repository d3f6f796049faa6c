"""python -m experiments.documents: methods, linear heads, cards, end to end on topics."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from small_runs import refuse_constant
from text_samples import TOPICS, write_20news, write_sst2

from experiments.clustering import figure
from experiments.documents import heads as heads_module
from experiments.documents.__main__ import main
from experiments.documents.baselines import baselines
from experiments.documents.cards import page
from experiments.documents.embeddings import TokenEmbeddings
from experiments.documents.heads import linear_head
from experiments.documents.readout import (
    BALANCED,
    ON_DOCUMENTS,
    ON_TOKENS,
    READOUTS,
    ReadoutSettings,
    fit_readout,
    summed_up,
)
from experiments.documents.study import axes_of
from experiments.documents.vectors import Documents, documents, fit_encoder
from experiments.identity import TOLERANCE
from training.errors import DatasetError

SCRIPT = "<script>alert(1)</script>"
QUICK = {"steps": 30, "starts": 2}


@pytest.fixture(scope="module")
def quick():
    """Fits of about a second."""
    with pytest.MonkeyPatch.context() as patch:
        for name, settings in READOUTS.items():
            patch.setitem(READOUTS, name, replace(settings, **QUICK))
        patch.setattr(heads_module, "HEAD_SIZES", (4,))
        yield


def call(*words: object) -> Result:
    """``python -m experiments.documents WORDS``, in this process."""
    return CliRunner().invoke(main, [str(word) for word in words])


def results(root: Path, name: str, data: Path, *words: object) -> tuple[dict, str]:
    """The JSON that the command writes to ``root / "out"``, and what it prints."""
    given = ("--data", name, "--data-dir", data, "--cache", root / "cache", "-o", root / "out")
    done = call(*given, *words)
    assert done.exit_code == 0, done.output
    text = (root / "out" / f"cluster-{name}.json").read_text()
    return json.loads(text, parse_constant=refuse_constant), done.output


@pytest.fixture(scope="module")
def news(quick, encoder_folder, tmp_path_factory) -> tuple[dict, str, str]:
    """JSON, Markdown and page of three topics that no two documents share a word of."""
    root = tmp_path_factory.mktemp("news")
    data = write_20news(root / "data", count=30)
    result, _ = results(root, "20news", data, "--encoder", encoder_folder, "--seeds", 2)
    files = (root / "out" / f"cluster-20news.{kind}" for kind in ("md", "html"))
    return result, *(file.read_text() for file in files)


def test_topics_are_found_without_labels(news):
    rows = {row["method"]: row for row in news[0]["methods"]}
    assert set(rows) == {BALANCED, ON_DOCUMENTS, ON_TOKENS, *baselines()}
    for name in (BALANCED, ON_DOCUMENTS, "k-means, mean", "spherical k-means, mean"):
        assert rows[name]["test"]["accuracy"]["mean"] > 0.95, name
        assert rows[name]["test"]["nmi"]["mean"] > 0.85, name
        assert rows[name]["test"]["clusters"] == [3, 3]
        assert sorted(rows[name]["test"]["mapping"][0].values()) == sorted(TOPICS)


def test_the_file_says_what_was_done(news):
    result = news[0]
    assert result["documents"] == {"train": 90, "test": 90}
    assert result["codebook_size"] == 3
    assert result["seeds"] == 2
    assert result["heads"] == []
    assert result["minutes"] >= result["embedding_minutes"] >= 0
    values = result["methods"][0]["test"]["accuracy"]
    assert values["mean"] == pytest.approx(np.mean(values["values"]))
    assert values["sd"] == pytest.approx(np.std(values["values"], ddof=1))
    assert result["settings"][BALANCED]["usage_weight"] > 0


def test_every_epoch_of_every_run_has_its_identity(news):
    result = news[0]
    count = 0
    for runs in result["epochs"].values():
        assert len(runs) == 2
        for run in runs:
            q, ols, v = (np.array(run[name]) for name in ("loss_q", "loss_ols", "variance"))
            np.testing.assert_allclose(ols + v, q, rtol=1e-4)  # of five digits
            assert (v >= 0).all()
            count += len(q)
    assert result["identity"]["epochs"] == count
    assert result["identity"]["largest_gap"] < 1e-5


def test_the_page_loads_nothing_and_shows_all_prototypes(news):
    text = news[2]
    tags = re.findall(r"<(\w+)", text)
    assert "script" not in tags
    assert not re.search(r"https?:|@import|url\(|\s(src|href)=", text)
    assert tags.count("article") == 6
    assert tags.count("li") == 30
    ids = re.findall(r'id="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    for section in sections_of(text).values():
        shares = [float(found) for found in re.findall(r"<span>([\d.]+) %</span>", section)]
        assert sum(shares) == pytest.approx(100, abs=0.3)
        assert shares == sorted(shares, reverse=True)


def sections_of(text: str) -> dict[str, str]:
    """The page's sections by the method that they show."""
    return {re.search("<h2>(.*?)</h2>", part)[1]: part for part in text.split("<section")[1:]}


def test_the_page_says_what_prototypes_were_fitted_on_and_their_classes(news):
    text, rows = news[2], news[0]["methods"]
    sections = sections_of(text)
    assert list(sections) == [BALANCED, ON_TOKENS]
    assert "K = 3 prototypes, 3 classes" in text
    assert "a document\nis one vector" in sections[BALANCED]
    assert "a document is all its tokens" in sections[ON_TOKENS]
    for row in rows:
        if row["method"] in sections:
            part = sections[row["method"]]
            shown = dict(re.findall(r"<span>Prototype (\d)</span>.*?Paired with (\w+)", part, re.S))
            assert shown == row["test"]["mapping"][0]


def test_whatever_documents_hold_is_shown_as_text(news):
    document = {"share": 0.5, "words": [f"word {SCRIPT}"]}
    document |= {key: f"{key} {SCRIPT}" for key in ("label", "excerpt")}
    fields = ("prototype", "share", "size", "label", "agreement", "words", "documents")
    filled = (0, 1.0, 1, f"class {SCRIPT}", 1.0, [(f"top {SCRIPT}", 0.1)], [document])
    cards = [dict(zip(fields, c, strict=True)) for c in (filled, (1, 0.0, 0, None, 0.0, [], []))]
    text = page({BALANCED: cards}, news[0] | {"data": f"name {SCRIPT}"})
    assert "<script" not in text
    for field in ("label", "word", "excerpt", "class", "top", "name"):
        assert escape(f"{field} {SCRIPT}") in text


def test_each_card_begins_with_a_word_of_its_topic(news):
    text = sections_of(news[2])[BALANCED]
    topic_of = {word: topic for topic, words in TOPICS.items() for word in words}
    lines = re.findall(r'<p class="words">(.*?)</p>', text)
    found = [
        [word for word in re.findall(r"<span>(\w+) <small>", line) if word in topic_of]
        for line in lines
    ]
    labels = re.findall(r"% of them (\w+)</p>", text)
    assert [topic_of[words[0]] for words in found] == labels
    assert sorted(labels) == sorted(TOPICS)


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_a_row_for_each_method(news):
    lines, rows = news[1].splitlines(), news[0]["methods"]
    assert lines[0] == "K = 3 clusters, 3 classes; test split, 2 seeds."
    scores, pairs = lines[4 : 4 + len(rows)], lines[7 + len(rows) :]
    assert len(scores) == len(pairs) == len(rows)
    for row, line, pairing in zip(rows, scores, pairs, strict=True):
        assert cells(line)[0] == row["method"]
        assert cells(line)[2] == figure(row["test"]["nmi"])
        mapping = row["test"]["mapping"][0].items()
        assert cells(pairing)[1] == ", ".join(f"{cluster} {label}" for cluster, label in mapping)


def test_sst2_also_gets_linear_heads(quick, encoder_folder, tmp_path):
    data = write_sst2(tmp_path / "data", count=40)
    options = ("--encoder", encoder_folder, "--k", 4, "--seeds", 1)
    result, output = results(tmp_path, "sst2", data, *options)
    heads = {row["vectors"]: row for row in result["heads"]}
    assert [heads[name]["features"] for name in ("CLS", "mean")] == [32, 32]
    assert heads["DDCL proportions, K = 4"]["features"] == 4
    assert heads["mean"]["test"]["mean"] == 1.0
    # Four clusters, two classes: one to one, half of the rows cannot be paired, yet all are pure.
    row = next(row for row in result["methods"] if row["method"] == "k-means, mean")
    assert row["test"]["purity"]["mean"] == 1.0
    assert row["test"]["accuracy"]["mean"] < 1.0
    assert row["test"]["accuracy"]["sd"] is None
    assert "| linear head on " in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "imdb", "--data-dir", "{data}"], "imdb_10k.jsonl.xz is missing"),
        (["--data", "imdb", "--data-dir", "{data}/none"], "name one with --data-dir"),
        (["--data", "sst2", "--data-dir", "{data}", "--encoder", "{data}"], "no config.json"),
        (["--data", "sst2", "--data-dir", "{data}", "--k", "9", "--limit", "9"], "too few for 9"),
        (["--data", "sst2", "--data-dir", "{data}",
          "--encoder", "{encoder}", "--max-length", "9999"],
         "from 3 to 128 tokens"),
        (["--data", "sst2", "--data-dir", "{data}", "-o", "/proc/foo"], "-o /proc/foo"),
        (["--data", "sst2", "--data-dir", "{data}/same"], "1 different training documents"),
        (["--data", "sst2", "--data-dir", "{data}/one"], "train split are of one class (negative)"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line(encoder_folder, tmp_path, words, message):
    write_sst2(tmp_path, count=12)
    for name, lines in (("same", ["wave\t0", "wave\t1"] * 6), ("one", ["a\t0", "b\t0", "c\t0"])):
        write_sst2(tmp_path / name, count=12)
        (tmp_path / name / "sst2_sent_train.tsv").write_text("\n".join(lines) + "\n")
    given = [word.format(data=tmp_path, encoder=encoder_folder) for word in words]
    for option, value in (("-o", tmp_path / "out"), ("--encoder", encoder_folder)):
        given += [] if option in given else [option, value]
    done = call(*given, "--cache", tmp_path / "cache")
    assert done.exit_code == 2
    assert message in done.output
    assert len(done.output.splitlines()) == 1
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("package", ["transformers", "safetensors"])
def test_a_missing_package_is_one_line_that_says_how_to_install_it(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    done = call("--data", "sst2", "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert f'needs {package}: pip install -e ".[experiments]"' in done.output
    assert len(done.output.splitlines()) == 1


def test_vectors_that_are_all_alike_are_refused():
    with pytest.raises(DatasetError, match="only 2 different vectors of 6"):
        axes_of(torch.eye(2, 4).repeat_interleave(3, dim=0), 2)
    nearly = 1 + 1e-6 * torch.arange(12.0).reshape(6, 2)
    with pytest.raises(DatasetError, match="cannot be told apart"):
        axes_of(nearly, 2)


def test_heads_of_more_prototypes_than_training_tokens_are_left_out(
    quick, encoder_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(heads_module, "HEAD_SIZES", (4, 4096))
    data = write_sst2(tmp_path / "data", count=40)
    options = ("--encoder", encoder_folder, "--limit", 4, "--seeds", 1)
    result, output = results(tmp_path, "sst2", data, *options)
    assert [row["features"] for row in result["heads"] if "proportions" in row["vectors"]] == [4]
    tokens = result["tokens"]["train"]
    assert f"no heads on 4096 prototypes: there are only {tokens} training tokens" in output


def blobs(count: int = 60, dim: int = 12, places: int = 5) -> tuple[Documents, np.ndarray]:
    """Documents of three far apart directions, each of a few noisy tokens."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3
    tokens = np.eye(dim)[labels][:, None] + 0.05 * rng.standard_normal((count, places, dim))
    flat = torch.tensor(tokens.reshape(-1, dim), dtype=torch.float16)
    ids = torch.arange(len(flat), dtype=torch.int32)
    return documents(TokenEmbeddings(flat, ids, torch.full((count,), places))), labels


def test_the_linear_encoder_is_a_scaled_pca_of_unit_vectors():
    vectors = torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
    units = vectors / vectors.norm(dim=1, keepdim=True)
    expected = PCA(4, svd_solver="full").fit_transform(units)
    codes = fit_encoder(vectors, 4)(vectors).numpy()
    scale = np.sqrt(expected.var(axis=0).mean())
    np.testing.assert_allclose(np.abs(codes), np.abs(expected) / scale, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fit_encoder(3 * vectors, 4)(5 * vectors), codes, atol=1e-4)
    assert fit_encoder(vectors[:3], 64).axes.shape == (10, 2)
    with pytest.raises(DatasetError, match="same way"):
        fit_encoder(torch.ones(5, 3), 2)


@pytest.mark.parametrize("unit", ["document", "token"])
def test_a_readout_finds_far_apart_directions(unit):
    split, labels = blobs()
    settings = ReadoutSettings(unit=unit, axes=4, **QUICK)
    fit = fit_readout(split, fit_encoder(split.mean, 4), 3, 0, settings)
    shares, read = fit.read(split)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(len(labels)))
    clusters = shares.argmax(dim=1).numpy()
    assert len({(a, b) for a, b in zip(clusters, labels, strict=True)}) == 3
    pooled = shares @ fit.readout.codebook.codebook
    torch.testing.assert_close(read, pooled.detach(), rtol=1e-4, atol=1e-4)
    assert max(epoch["gap"] for epoch in fit.epochs) < 1e-5
    again = fit_readout(split, fit_encoder(split.mean, 4), 3, 0, settings)
    assert torch.equal(again.read(split)[0], shares)
    other = fit_readout(split, fit_encoder(split.mean, 4), 3, 1, settings)
    assert not torch.equal(other.read(split)[0], shares)


def test_a_broken_identity_stops_the_run():
    split, _ = blobs()
    fit = fit_readout(split, fit_encoder(split.mean, 4), 3, 0, ReadoutSettings(axes=4, **QUICK))
    line = {"loss_q": 1.0, "loss_ols": 0.7, "variance": 0.3, "codes_per_token": 1.0}
    assert summed_up([line, line], fit.readout)["gap"] < 1e-12
    for broken in (0.3 + 2 * TOLERANCE, float("nan")):
        with pytest.raises(ArithmeticError, match="is not L_OLS"):
            summed_up([line, line | {"variance": broken}], fit.readout)


def test_the_dev_split_chooses_the_penalty_of_a_head():
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((80, 20)) for name in ("train", "dev", "test")}
    y = {name: (v[:, 0] + rng.standard_normal(80) > 0).astype(int) for name, v in x.items()}
    center, scale = x["train"].mean(axis=0), x["train"].std(axis=0)
    scores = {}
    for strength in (0.001, 0.1, 10.0):
        model = LogisticRegression(C=strength, max_iter=2000)
        model.fit((x["train"] - center) / scale, y["train"])
        scores[strength] = {s: model.score((x[s] - center) / scale, y[s]) for s in ("dev", "test")}
    best = max(scores, key=lambda strength: scores[strength]["dev"])
    found = linear_head(x, y, (10.0, 0.001, 0.1))
    assert (found.strength, found.features) == (best, 20)
    assert (found.dev, found.test) == (scores[best]["dev"], scores[best]["test"])


@pytest.mark.slow
def test_real_newsgroups_are_told_apart_far_better_than_by_chance(quick, texts, tmp_path):
    options = ("--limit", 512, "--max-length", 64, "--seeds", 1)
    result, _ = results(tmp_path, "20news", texts, *options)
    rows = {row["method"]: row["test"] for row in result["methods"]}
    assert rows[ON_DOCUMENTS]["nmi"]["mean"] > 0.35
    assert rows[ON_DOCUMENTS]["accuracy"]["mean"] > 0.25
