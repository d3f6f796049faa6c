"""compress, decompress and tokens through the command line."""

import torch
from PIL import Image
from safetensors import safe_open
from small_pictures import picture
from small_runs import assert_refused, evaluate, snapshot

from eval.run import model_hash
from training.data.feed import to_float
from training.data.splits import load_splits


def test_files_and_folders_through_the_command_line(tmp_path, runs):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    picture(40, 20).save(folder / "a.png")
    picture(40, 20, "L", 1).save(folder / "deep" / "b.jpg")
    picture(9, 9, "RGBA", 2).save(tmp_path / "c.webp")
    file = tmp_path / "tokens.svq"
    result = evaluate("compress", runs["pyramid"], folder, tmp_path / "c.webp", "-o", file)
    assert result.exit_code == 0, result.output
    assert f"3 images, {file.stat().st_size:,} bytes" in result.stdout
    assert "transparency of 1 images is not kept" in result.stderr
    result = evaluate("decompress", runs["pyramid"], file, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    shapes = {}
    for path in (tmp_path / "out").rglob("*.png"):
        with Image.open(path) as shown:
            shapes[path.relative_to(tmp_path / "out").as_posix()] = (shown.size, shown.mode)
    assert shapes == {
        "a.png": ((40, 20), "RGB"),
        "deep/b.png": ((40, 20), "L"),
        "c.png": ((9, 9), "RGB"),
    }
    before = snapshot(tmp_path)
    result = evaluate("decompress", runs["pyramid"], file, "-o", tmp_path / "out")
    assert_refused(result, 2, "exists already")
    assert snapshot(tmp_path) == before
    coarse = tmp_path / "coarse.svq"
    assert evaluate("compress", runs["pyramid"], folder, "-o", coarse, "--levels", 1).exit_code == 0
    assert coarse.stat().st_size < file.stat().st_size
    assert evaluate("decompress", runs["pyramid"], coarse, "-o", tmp_path / "coarse").exit_code == 0
    assert len(list((tmp_path / "coarse").rglob("*.png"))) == 2


def test_wrong_calls_are_one_line_and_write_nothing(tmp_path, runs):
    (tmp_path / "empty").mkdir()
    picture(8, 8).save(tmp_path / "a.png")
    (tmp_path / "text.png").write_text("no picture")
    good = tmp_path / "good.svq"
    assert evaluate("compress", runs["one"], tmp_path / "a.png", "-o", good).exit_code == 0
    (tmp_path / "short.svq").write_bytes(good.read_bytes()[:-1])
    out = tmp_path / "out"
    cases = [
        (("compress", runs["one"], tmp_path / "empty", "-o", out), 2, "no images below"),
        (("compress", runs["one"], tmp_path / "none.png", "-o", out), 2, "none.png: give image"),
        (("compress", runs["one"], tmp_path / "text.png", "-o", out), 2, "cannot read image"),
        (
            ("compress", runs["one"], tmp_path / "a.png", "-o", out, "--levels", 2),
            2,
            "between 1 and 1",
        ),
        (("compress", runs["one"], tmp_path / "a.png", "-o", out, "--levels", 0), 2, "got 0"),
        (("compress", tmp_path / "none", tmp_path / "a.png", "-o", out), 1, "does not exist"),
        (("decompress", runs["residual"], good, "-o", out), 1, "another model made it"),
        (("decompress", runs["one"], tmp_path / "short.svq", "-o", out), 1, "truncated or damaged"),
        (("decompress", runs["one"], tmp_path / "a.png", "-o", out), 1, "not a file of tokens"),
        (("decompress", runs["one"], good, "-o", out, "--levels", 2), 2, "between 1 and 1"),
        (("decompress", runs["one"], tmp_path / "none.svq", "-o", out), 1, "No such file"),
    ]
    before = snapshot(tmp_path)
    for words, status, message in cases:
        result = evaluate(*words)
        assert len(result.stderr.splitlines()) == 1
        assert_refused(result, status, message)
    assert snapshot(tmp_path) == before


def test_odd_and_equal_names_come_back(tmp_path, runs):
    for number in range(2):
        folder = tmp_path / f"in{number}"
        folder.mkdir()
        picture(8, 8, seed=number).save(folder / "frame.png")
    picture(8, 8, seed=2).save(tmp_path / "12:30.png")
    words = (tmp_path / "in0", tmp_path / "in1", tmp_path / "12:30.png")
    assert evaluate("compress", runs["one"], *words, "-o", tmp_path / "x.svq").exit_code == 0
    out = tmp_path / "out"
    assert evaluate("decompress", runs["one"], tmp_path / "x.svq", "-o", out).exit_code == 0
    assert sorted(p.name for p in out.iterdir()) == ["12_30.png", "frame-2.png", "frame.png"]


def test_an_input_is_never_the_output(tmp_path, runs):
    picture(8, 8).save(tmp_path / "a.png")
    before = snapshot(tmp_path)
    result = evaluate("compress", runs["one"], tmp_path / "a.png", "-o", tmp_path / "a.png")
    assert_refused(result, 2, "is one of the images")
    assert snapshot(tmp_path) == before


def test_tokens_for_a_prior(tmp_path, runs, models):
    out = tmp_path / "tokens.safetensors"
    result = evaluate("tokens", runs["pyramid"], "-o", out, "--split", "test", "--limit", 5)
    assert result.exit_code == 0, result.output
    images = load_splits("patches", limit_train=5, limit_test=5).test
    network = models["pyramid"].network
    expected = network.split(network.tokens(to_float(images)))
    with safe_open(out, framework="pt") as file:
        assert set(file.keys()) == {"test.level_1", "test.level_2", "test.level_3"}
        for number, tokens in enumerate(expected, start=1):
            assert torch.equal(file.get_tensor(f"test.level_{number}").long(), tokens)
        metadata = file.metadata()
    assert metadata["model"] == model_hash(network)
    assert metadata["codebook_sizes"] == "[5, 16, 30]"
    assert evaluate("tokens", runs["one"], "-o", out, "--split", "x").exit_code == 2
    assert evaluate("tokens", runs["one"], "-o", out).exit_code == 0
    with safe_open(out, framework="pt") as file:
        assert set(file.keys()) == {f"{split}.level_1" for split in ("train", "val", "test")}
