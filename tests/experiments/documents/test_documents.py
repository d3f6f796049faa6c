"""python -m experiments.documents: tables, cards, wrong calls, end to end on topics."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from small_runs import refuse_constant
from text_samples import TOPICS, write_20news, write_sst2

from experiments.clustering import figure
from experiments.documents import heads as heads_module
from experiments.documents.__main__ import main
from experiments.documents.baselines import baselines
from experiments.documents.cards import page
from experiments.documents.readout import BALANCED, ON_DOCUMENTS, ON_TOKENS, READOUTS

SCRIPT = "<script>alert(1)</script>"
QUICK = {"steps": 30, "starts": 2}


@pytest.fixture(scope="module")
def quick():
    """Fits of about a second."""
    with pytest.MonkeyPatch.context() as patch:
        for name, settings in READOUTS.items():
            patch.setitem(READOUTS, name, replace(settings, **QUICK))
        patch.setattr(heads_module, "HEAD_SIZES", (4, 4096))
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
    assert [row["features"] for row in result["heads"] if "proportions" in row["vectors"]] == [4]
    tokens = result["tokens"]["train"]
    assert f"no heads on 4096 prototypes: there are only {tokens} training tokens" in output
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
        ("--data imdb", "imdb_10k.jsonl.xz is missing"),
        ("--data-dir {data}/none", "name one with --data-dir"),
        ("--encoder {data}", "no config.json"),
        ("--k 9 --limit 9", "too few for 9"),
        ("--max-length 9999", "from 3 to 128 tokens"),
        ("-o /proc/foo", "-o /proc/foo"),
        ("--data-dir {data}/same", "1 different training documents"),
        ("--data-dir {data}/one", "train split are of one class (negative)"),
    ],
)
def test_a_wrong_call_is_one_line(encoder_folder, tmp_path, words, message):
    write_sst2(tmp_path, count=12)
    for name, lines in (("same", ["wave\t0", "wave\t1"] * 6), ("one", ["a\t0", "b\t0", "c\t0"])):
        write_sst2(tmp_path / name, count=12)
        (tmp_path / name / "sst2_sent_train.tsv").write_text("\n".join(lines) + "\n")
    usual = ("--data", "sst2", "--data-dir", tmp_path, "--encoder", encoder_folder)
    paths = ("--cache", tmp_path / "cache", "-o", tmp_path / "out")
    done = call(*usual, *paths, *words.format(data=tmp_path).split())  # the last of two counts
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


@pytest.mark.slow
def test_real_newsgroups_are_told_apart_far_better_than_by_chance(quick, texts, tmp_path):
    options = ("--limit", 512, "--max-length", 64, "--seeds", 1)
    result, _ = results(tmp_path, "20news", texts, *options)
    rows = {row["method"]: row["test"] for row in result["methods"]}
    assert rows[ON_DOCUMENTS]["nmi"]["mean"] > 0.35
    assert rows[ON_DOCUMENTS]["accuracy"]["mean"] > 0.25
