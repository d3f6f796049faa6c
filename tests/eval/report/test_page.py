"""The page of a run: what it says, what it holds back, and that it needs nothing else."""

from __future__ import annotations

import base64
import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from eval.doctor import Finding
from eval.report.evaluate import evaluate_run
from eval.report.html import cleaned, head, write_page, write_run_page
from eval.report.tables import bounds_table, gap_table, levels_table, quality_table


def finding(name, severity, evidence="seen", advice="do", level=None):
    return Finding(name, severity, evidence, advice, level)


REPORT = {
    "checkpoint": "/home/me/my runs/first/best.pt",
    "quantizer": "ddcl-em",
    "dataset": "cifar10",
    "test_images": 10_000,
    "step": 1234,
    "codebook_size": 512,
    "codebook_dim": 64,
    "parameters": 70_000,
    "tokens_per_image": 64,
    "mse_soft": 0.004,
    "mse_argmax": 0.005,
    "psnr_soft": 24.125,
    "psnr_argmax": 23.875,
    "utilization": 0.75,
    "bits_per_token": 9.0,
    "gap": [
        {"decode": "soft", "mse": 0.004, "lpips": None, "bits_log2_k": None},
        {"decode": "argmax", "mse": 0.005, "lpips": None, "bits_log2_k": 9.0},
    ],
    "gap_levels": [
        {
            "argmax_distance": 0.25,
            "argmax_distance_bound": 0.5,
            "error_added": 0.125,
            "variance": 0.375,
        }
    ],
    "definitions": {"mse": "Mean of squares; see https://example.org/a/b."},
    "unavailable": ["lpips: no weights at /home/me/nets/alex.pth; give --lpips-weights"],
    "versions": {"torch": "2.9"},
}


class Page(HTMLParser):
    """Tags, their attributes, and the text between them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self.inside = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" not in self.inside and data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def text(self):
        return " ".join(self.texts)


def page_of(tmp_path, *args, **options):
    path = tmp_path / "page.html"
    write_page(path, *args, **options)
    return path.read_text()


def small_figure(label="a"):
    figure = Figure(figsize=(2, 1), dpi=150)
    figure.add_subplot().set_xlabel(label)
    return figure


def assert_self_contained(html):
    """No address is loaded from, and nothing runs."""
    assert not re.search(r"@import|url\(|<script|javascript:", html, re.IGNORECASE)
    loading = {"src", "href", "srcset", "poster", "data", "action", "background"}
    for tag, attributes in Page(html).tags:
        assert tag not in {"script", "iframe", "object", "embed", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in loading or value.startswith("data:")


def test_it_says_what_was_trained_and_how_good_its_tokens_are(tmp_path):
    page = Page(page_of(tmp_path, REPORT))
    for words in (
        "Report of first", "trained on cifar10", "with ddcl-em", "as 64 tokens",
        "each one of 512 codes", "10,000 test images", "step 1,234 of the training (best.pt)",
        "mean over images 24.12 23.88", "bits per token (log2 K) 9.000", "utilization 75.0%",
        "MSE 0.00400 0.00500", "compare tokenizers by them", "torch 2.9", "Mean of squares",
    ):  # fmt: skip
        assert words.replace(" ", "") in page.text.replace(" ", ""), words
    assert "What is wrong" not in page.text  # the doctor was not asked


def test_tables_have_what_was_measured():
    assert quality_table(REPORT).measured().rows == [
        ["MSE", "0.00400", "0.00500"],
        ["PSNR (dB), mean over images", "24.12", "23.88"],
    ]
    rfid = {"soft": 3.0, "argmax": 4.5, "soft_half": 3.5, "argmax_half": 5.0, "images": 500}
    assert quality_table({"rfid": rfid}).measured().rows == [
        ["rfid, 500 images", "3.000", "4.500"],
        ["of every second one", "3.500", "5.000"],
    ]
    assert bounds_table(REPORT).rows == [["1", "0.25", "0.5", "0.125", "0.375"]]
    assert bounds_table({"gap_levels": [None]}).rows == []
    gap = gap_table(REPORT).measured()
    assert gap.heads == ["decoded from", "MSE", "log2 K"]
    assert gap.rows == [["soft", "0.00400", "-"], ["argmax", "0.00500", "9.000"]]
    levels = [{"codebook_size": 8, "perplexity": 5.25}, {"codebook_size": 16}]
    levels = levels_table({"levels": levels}).measured()
    assert levels.heads == ["level", "K", "perpl."]
    assert levels.rows == [["1", "8", "5.2"], ["2", "16", "-"]]
    assert gap_table({"gap": None}).rows == levels_table({}).rows == []


def test_findings_are_shown_worst_first_with_evidence_and_advice(tmp_path):
    soft = finding("too-soft", "severe", "3 codes per token.", "Give --temperature-end 1.05.", 2)
    findings = [finding("far-codes", "note"), soft, finding("duplicates", "warning")]
    html = page_of(tmp_path, REPORT, findings=findings)
    text = Page(html).text
    shown = ("Severe: too soft", "Warning: dup", "Note: far codes")
    places = [text.index(words) for words in shown]
    assert places == sorted(places)
    assert "too soft, level 2 3 codes per token. To do: Give --temperature-end 1.05." in text
    assert html.count('class="finding severe"') == 1
    assert "found nothing wrong" in page_of(tmp_path, REPORT, findings=[])
    assert "found nothing wrong" not in html


def test_a_hard_codebook_is_called_hard_whatever_rounding_does_to_its_two_figures(tmp_path):
    report = REPORT | {"mse_soft": 0.005000001, "gap_levels": [None]}
    page = Page(page_of(tmp_path, report, {}))
    assert "This codebook is hard" in page.text
    assert "nothing is lost" in page.text


def test_a_run_given_as_a_dot_has_the_name_of_its_folder(tmp_path, monkeypatch):
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "best.pt").write_bytes(b"x")
    monkeypatch.chdir(tmp_path / "my run")
    assert head({"checkpoint": "best.pt"})["run"] == "my run"
    assert head({"codebook_size": [512, 1024]})["sizes"] == ["512", "1,024"]


def test_pictures_are_inlined_whole_with_title_and_size(tmp_path):
    pictures = {name: small_figure() for name in ("usage_curve", "gallery_level_2", "own")}
    page = Page(page_of(tmp_path, REPORT, pictures))
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert [image["alt"] for image in images] == [
        "Use of the codes", "What codes stand for, level 2", "Own",
    ]  # fmt: skip
    for image in images:
        content = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
        picture = Image.open(io.BytesIO(content))
        picture.load()
        assert picture.size == (int(image["width"]), int(image["height"])) == (300, 150)


def test_a_hard_codebook_and_none_are_spoken_of_as_such(tmp_path):
    hard = REPORT | {"quantizer": "vq", "mse_soft": 0.005, "gap": None, "gap_levels": [None]}
    text = Page(page_of(tmp_path, hard)).text
    assert "This codebook is hard" in text
    assert "decoded from" not in text
    none = REPORT | {"quantizer": "none", "gap": None, "mse_argmax": None, "psnr_argmax": None,
                     "utilization": None, "bits_per_token": None}  # fmt: skip
    text = Page(page_of(tmp_path, none)).text
    assert "no codebook, hence no tokens" in text
    assert "compare tokenizers by them" not in text
    assert "PSNR (dB), mean over images 24.12" in text


def test_an_empty_report_is_a_page(tmp_path):
    html = page_of(tmp_path, {})
    assert_self_contained(html)
    assert "None" not in Page(html).text


def test_what_is_shown_is_escaped(tmp_path):
    evil = '<script>alert("x")</script><img src=http://a.b/c onerror=1>'
    report = REPORT | {
        "checkpoint": f"/runs/{evil}",
        "dataset": evil,
        "quantizer": evil,
        "gap": [{"decode": evil, "mse": 1.0}],
        "definitions": {evil: evil},
        "unavailable": [evil],
        "versions": {evil: evil},
    }
    findings = [finding(evil, "note", evil, evil)]
    html = page_of(tmp_path, report, {evil: small_figure()}, findings, {evil: evil})
    assert_self_contained(html)
    assert "alert(" in Page(html).text  # as text


def test_it_is_self_contained(tmp_path):
    pictures = {"gallery": small_figure("<b>")}
    html = page_of(tmp_path, REPORT, pictures, [finding("a", "note")], {"epochs": 3})
    assert_self_contained(html)
    assert '<meta name="viewport"' in html
    [policy] = [a["content"] for t, a in Page(html).tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


def test_no_folder_of_the_machine_is_named(tmp_path):
    definition = f"{Path.cwd()}/nets/a.pth and {Path.home()}/b c/d, see https://example.org/a/b"
    report = REPORT | {"definitions": {"net": definition}}
    config = {"out": "/home/me/runs/first", "data_dir": r"C:\Users\me\cifar", "epochs": 3}
    findings = [finding("a", "note", "see /home/me/runs/first/last.pt.", "and ~/x/y")]
    page = Page(page_of(tmp_path, report, findings=findings, config=config))
    for folder in ("/home", "me/", "my runs", "Users", str(Path.cwd()), str(Path.home()) + "/"):
        assert folder not in page.text, folder
    for kept in ("alex.pth", "out: first", "data_dir: cifar", "see last.pt.", "example.org/a/b"):
        assert kept in page.text, kept


@pytest.mark.parametrize(
    "text", ["T / T_c and V / L_q", "https://a.org/b/c/d", "runs/a/b", "1/2/3", "and/or", "/"]
)
def test_slashes_that_are_no_paths_are_kept(text):
    assert cleaned(text) == text


def test_a_page_replaces_an_older_one_only_when_it_is_whole(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="not in tuple"):
        write_page(path, REPORT, findings=[finding("a", "severity")])
    assert path.read_text() == "old"
    write_page(path, REPORT)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("quantizer", ["ddcl-em", "none"])
def test_the_page_of_a_run_has_its_figures_and_pictures(run_of, tmp_path, quantizer):
    run = run_of(quantizer=quantizer, epochs=2)
    report, path = evaluate_run(run, limit_test=16), tmp_path / "page.html"
    write_run_page(path, run, report, [], limit_test=16)
    html = path.read_text()
    assert_self_contained(html)
    page = Page(html)
    shown = [attributes["id"] for tag, attributes in page.tags if tag == "figure"]
    # A model without tokens has nothing to count.
    of_tokens = {"token_map", "gallery", "usage_curve", "usage_history"}
    assert set(shown) == {"reconstructions"} | (set() if quantizer == "none" else of_tokens)
    assert f"{report['psnr_soft']:.2f}" in page.text
    assert str(run.parent) not in html
    assert f"quantizer: {quantizer}" in page.text


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_on_a_phone_and_on_a_desktop_without_errors_or_overflow(runs, tmp_path, width):
    api = pytest.importorskip("playwright.sync_api", reason="opens pages in a browser")
    chromium = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on the search path")
    report = evaluate_run(runs["ddcl-em"], limit_test=16) | {
        "checkpoint": "/a/" + "long_name" * 30,
        "definitions": {"x" * 200: "y" * 2000},
    }
    findings = [finding("a" * 100, "severe", "b" * 500, "c" * 500)]
    write_run_page(tmp_path / "page.html", runs["ddcl-em"], report, findings, limit_test=16)
    faults: list[object] = []
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        for event in ("pageerror", "console"):
            page.on(event, lambda fault: faults.append(str(fault)))  # a builtin is no handler
        page.on("request", lambda r: r.url.startswith(("file:", "data:")) or faults.append(r.url))
        page.goto((tmp_path / "page.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert not faults
