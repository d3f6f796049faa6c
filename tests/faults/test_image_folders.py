"""Folders as people have them: hidden copies, links, splits by other names, few images."""

import os
from pathlib import Path

import pytest
from odd_images import flat, photo
from small_runs import arguments, command

from training.config import TrainConfig
from training.data.image_file import open_image
from training.data.image_folder import find_images, in_words, split_folder
from training.data.splits import load_splits
from training.errors import DatasetError


@pytest.mark.parametrize(
    "folder",
    [".ipynb_checkpoints", ".git/deep", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found"],
)
def test_hidden_and_housekeeping_folders_are_no_images(tmp_path, folder):
    own = flat(tmp_path / "cats" / "1.png")
    flat(tmp_path / "cats" / folder / "1-checkpoint.png")
    files = find_images(tmp_path)
    assert files.paths == [own]
    assert in_words(files.skipped) == "1 hidden folders"


def test_a_hidden_folder_that_is_asked_for_is_read(tmp_path):
    own = flat(tmp_path / ".cache" / "1.png")
    assert find_images(tmp_path / ".cache").paths == [own]


def test_links_are_followed_and_loops_end(tmp_path):
    for number in range(5):
        flat(tmp_path / "elsewhere" / f"{number}.png", number)
    root = tmp_path / "data"
    own = flat(root / "real" / "x.png")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "real" / "loop").symlink_to(root)
    (root / "again").symlink_to(root / "real")
    (root / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (root / "same.png").symlink_to(own)
    files = find_images(root)
    assert len(files.paths) == 6
    assert {path.parent.name for path in files.paths} == {"linked", "real"} or len(
        {path.resolve() for path in files.paths}
    ) == 6
    assert files.skipped == {
        "folders linked a second time": 2,
        "links that lead nowhere": 1,
        "files linked a second time": 1,
    }


def test_an_image_is_in_one_split_only_whatever_links_say(tmp_path):
    for number in range(20):
        flat(tmp_path / "train" / f"{number}.png", number)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "0.png").symlink_to(tmp_path / "train" / "0.png")
    os.link(tmp_path / "train" / "1.png", tmp_path / "test" / "1.png")
    own = flat(tmp_path / "test" / "2.png", 99)
    files = split_folder(tmp_path)
    assert files.test == [own]
    assert files.skipped["files linked a second time"] == 2


@pytest.mark.parametrize("train", ["train", "Train", "TRAIN"])
@pytest.mark.parametrize("val", ["val", "Val", "valid", "validation", "dev", "Valid"])
@pytest.mark.parametrize("test", ["test", "Test"])
def test_splits_are_found_without_case(tmp_path, train, val, test):
    for name in (train, val, test):
        flat(tmp_path / name / f"{name}.png")
    files = split_folder(tmp_path)
    assert [path.parent.name for split in files[:3] for path in split] == [train, val, test]


@pytest.mark.parametrize(
    "folders",
    [
        ("train", "training", "test"),
        ("train2017", "val2017"),
        ("testing", "cats"),
        ("train", "test_images"),
        ("train", "val", "eval"),
        ("test", "cats"),
        ("val", "dogs"),
        ("train", "val", "valid"),
        ("Test-Set", "cats"),
    ],
)
def test_what_looks_like_a_split_and_would_be_mixed_is_an_error(tmp_path, folders):
    for name in folders:
        for number in range(4):
            flat(tmp_path / name / f"{number}.png")
    with pytest.raises(DatasetError, match=r"looks like a split|both for val"):
        split_folder(tmp_path)


@pytest.mark.parametrize("name", ["trains", "valley", "contest", "developers", "tester", "evals2x"])
def test_classes_that_sound_like_splits_are_classes(tmp_path, name):
    for number in range(4):
        flat(tmp_path / name / f"{number}.png")
    assert sum(len(split) for split in split_folder(tmp_path)[:3]) == 4


@pytest.mark.parametrize("folder", ["train", "compress"])
def test_home_is_expanded_once(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        photo(tmp_path / "imgs" / f"{number}.png", (16, 16))
    options = arguments(out="~/run", steps=1, dataset="folder", data_dir="~/imgs", image_size=16)
    assert command(*options).exit_code == 0
    assert (tmp_path / "run" / "last.pt").exists()
    if folder == "compress":
        from click.testing import CliRunner

        from eval.__main__ import main

        words = ["compress", "~/run", "~/imgs", "-o", "~/tokens.svq"]
        assert CliRunner().invoke(main, words).exit_code == 0
        assert (tmp_path / "tokens.svq").exists()
    assert not (tmp_path / "~").exists()
    assert TrainConfig.from_options(out="~/a").run.out == str(tmp_path / "a")


@pytest.mark.parametrize("dataset", ["cifar10", "auto", "folder"])
def test_cifar10_itself_is_named(tmp_path, dataset):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_text("")
    with pytest.raises(DatasetError, match=rf"CIFAR-10 itself.*{tmp_path}$"):
        load_splits(dataset, folder)


def test_pipes_are_no_images(tmp_path):
    own = flat(tmp_path / "a.png")
    os.mkfifo(tmp_path / "z.png")
    files = find_images(tmp_path)
    assert files.paths == [own]
    assert in_words(files.skipped) == "1 pipes and devices"
    with pytest.raises(DatasetError, match="no regular file"):
        open_image(tmp_path / "z.png")


def run_on(folder: Path, out: Path, *more: str, **options):
    own = {"dataset": "folder", "data_dir": folder, "image_size": 16, "epochs": 2} | options
    return command(*arguments(out=out, **own), *more)


def test_images_that_have_changed_are_noticed_on_resume(tmp_path):
    folder, out = tmp_path / "imgs", tmp_path / "run"
    for number in range(10):
        flat(folder / f"{number}.png", number)
    assert run_on(folder, out).exit_code == 0
    flat(folder / "3.png", 200)
    result = command("--resume", "--out", out, "--epochs", 3)
    assert result.exit_code == 2
    assert "the images have changed since" in result.stderr
    assert command("--resume", "--out", out, "--epochs", 3, "--changed-images").exit_code == 0
    assert "with other pixels" not in command("--resume", "--out", out, "--epochs", 4).stderr
    assert command("--changed-images", "--out", tmp_path / "new").exit_code == 2


def test_few_images_are_said_before_the_training(tmp_path):
    for number in range(12):
        flat(tmp_path / "imgs" / f"{number}.png", number)
    result = run_on(tmp_path / "imgs", tmp_path / "run")
    assert "few images: an epoch is 1 step of" in result.output
    assert "smaller --batch-size" in result.output
    assert "few images" not in run_on(tmp_path / "imgs", tmp_path / "two", batch_size=1).output


def test_photographs_as_people_have_them_train_after_one_message(tmp_path):
    from small_runs import evaluate

    folder = tmp_path / "imgs"
    for number in range(8):
        photo(folder / f"{number}.jpg", (40, 30 + number))
    photo(folder / "deep" / "x.webp")
    flat(folder / ".thumbnails" / "0.png")
    (folder / "notes.txt").write_text("mine")
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nhalf")
    result = run_on(folder, tmp_path / "run")
    assert result.exit_code == 2
    assert "broken.png" in result.stderr
    assert "--skip-bad" in result.stderr
    result = run_on(folder, tmp_path / "run", "--skip-bad")
    assert result.exit_code == 0, result.output
    assert "left out: cannot read image" in result.output
    assert "1 hidden folders" in result.output
    assert "1 files *.txt" in result.output
    run, file = tmp_path / "run", tmp_path / "tokens.svq"
    assert evaluate("compress", run, folder, "-o", file).exit_code == 2
    assert not file.exists()
    result = evaluate("compress", run, folder, "-o", file, "--skip-bad")
    assert result.exit_code == 0
    assert "9 images" in result.stdout
    assert result.stderr.count("left out: cannot read image") == 1
    out = tmp_path / "pictures"
    assert evaluate("decompress", run, file, "-o", out).exit_code == 0
    assert sorted(path.stem for path in out.rglob("*.png")) == [*map(str, range(8)), "x"]
    split_folder(folder).train[0].write_bytes(b"RIFF")
    assert evaluate("tokens", run, "-o", tmp_path / "t.safetensors").exit_code == 0
    (folder / "only").mkdir()
    (folder / "only" / "bad.png").write_bytes(b"no")
    words = ("compress", run, folder / "only", "-o", tmp_path / "none.svq", "--skip-bad")
    result = evaluate(*words)
    assert result.exit_code == 2
    assert "none of 1 images can be read" in result.stderr
