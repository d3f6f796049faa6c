import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from softvq import (
    CodesPerToken,
    DDCLCodebook,
    Schedule,
    UtilizationTracker,
    VQCodebook,
    VQEMACodebook,
)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.lists(st.integers(0, 2**31), max_size=5), st.booleans())
def test_counts_are_exact_over_batches_and_masks(size, seeds, masked):
    tracker = UtilizationTracker(size)
    counts = np.zeros(size, np.int64)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        shape = tuple(rng.integers(0, 5, size=rng.integers(0, 4)))
        indices = rng.integers(-1, size, size=shape)
        mask = rng.random(shape) > 0.5
        given_indices, given_mask = torch.tensor(indices), torch.tensor(mask)
        tracker.update(given_indices, given_mask if masked else None)
        for index, kept in zip(np.ravel(indices), np.ravel(mask), strict=True):
            counts[index] += index >= 0 and (kept or not masked)
    usage = tracker.compute()
    assert usage.counts.tolist() == counts.tolist()
    assert usage.counts.dtype == torch.int64
    assert usage.used == (counts > 0).sum()
    assert usage.dead.tolist() == np.flatnonzero(counts == 0).tolist()
    assert usage.utilization == (counts > 0).mean()
    p = counts[counts > 0] / max(counts.sum(), 1)
    expected = math.exp(-(p * np.log(p)).sum()) if counts.sum() else 0.0
    assert usage.perplexity == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_any_integer_dtype(dtype):
    tracker = UtilizationTracker(4)
    tracker.update(torch.tensor([0, 3, 3], dtype=dtype))
    assert tracker.counts.tolist() == [1, 0, 0, 2]


def test_a_row_of_history_per_epoch():
    tracker = UtilizationTracker(3)
    tracker.update(torch.tensor([0, 0, 1]))
    first = tracker.end_epoch()
    assert first.counts.tolist() == [2, 1, 0]
    assert tracker.compute().used == 0
    tracker.update(torch.tensor([2]))
    tracker.reset()
    tracker.update(torch.tensor([1]))
    tracker.end_epoch()
    assert tracker.history.tolist() == [[2, 1, 0], [0, 1, 0]]
    tracker.update(torch.tensor([2, 2]))
    assert first.counts.tolist() == [2, 1, 0]
    assert tracker.history.tolist() == [[2, 1, 0], [0, 1, 0]]


def test_strict_state_dict_round_trip_with_a_longer_history():
    model = nn.ModuleDict({"usage": UtilizationTracker(3)})
    for index in range(3):
        model["usage"].update(torch.tensor([index, 0]))
        model["usage"].end_epoch()
    model["usage"].update(torch.tensor([2]))
    for rows in (0, 5):
        other = nn.ModuleDict({"usage": UtilizationTracker(3)})
        for _ in range(rows):
            other["usage"].end_epoch()
        other.load_state_dict(model.state_dict(), strict=True)
        assert other["usage"].history.tolist() == [[2, 0, 0], [1, 1, 0], [1, 0, 1]]
        assert other["usage"].counts.tolist() == [0, 0, 1]
        other["usage"].end_epoch()
        assert len(model["usage"].history) == 3
    with pytest.raises(RuntimeError, match="size mismatch"):
        UtilizationTracker(4).load_state_dict(model["usage"].state_dict())


@pytest.mark.parametrize("bad", [[0, 4], [-2, 0]])
def test_an_index_out_of_range_counts_nothing(bad):
    tracker = UtilizationTracker(4)
    message = rf"\[0, 4\), or be -1 for padding; got values from {bad[0]} to {bad[1]}"
    with pytest.raises(IndexError, match=message):
        tracker.update(torch.tensor(bad))
    assert tracker.counts.tolist() == [0] * 4
    tracker.update(torch.tensor(bad), torch.tensor([bad[0] == 0, bad[1] == 0]))
    assert tracker.counts.tolist() == [1, 0, 0, 0]


def test_wrong_calls():
    with pytest.raises(ValueError, match="codebook_size must be at least 1, got 0"):
        UtilizationTracker(0)
    tracker = UtilizationTracker(4)
    with pytest.raises(ValueError, match=r"shape \(2, 3\), got \(3, 2\)"):
        tracker.update(torch.zeros(2, 3, dtype=torch.int64), torch.ones(3, 2, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"integers, got torch\.float32"):
        tracker.update(torch.tensor([0.7]))
    with pytest.raises(TypeError, match=r"integers, got torch\.bool"):
        tracker.update(torch.tensor([True]))
    with pytest.raises(TypeError, match=r"mask must be a bool tensor.*torch\.int64"):
        tracker.update(torch.tensor([0, 1]), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="no epoch has ended"):
        tracker.write(None, 0)


def test_write_into_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    tracker = UtilizationTracker(5)
    expected = []
    with SummaryWriter(tmp_path) as writer:
        for epoch, indices in enumerate([[0, 0, 1, 2], [3, 3], []]):
            tracker.update(torch.tensor(indices, dtype=torch.int64))
            expected.append(tracker.end_epoch())
            tracker.write(writer, epoch, tag="usage")
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    for name, values in {
        "utilization": [usage.utilization for usage in expected],
        "dead_codes": [len(usage.dead) for usage in expected],
        "perplexity": [usage.perplexity for usage in expected],
    }.items():
        scalars = events.Scalars(f"usage/{name}")
        assert [scalar.step for scalar in scalars] == [0, 1, 2]
        assert [scalar.value for scalar in scalars] == pytest.approx(values)
    for name in ("usage_curve", "usage_history"):
        images = events.Images(f"usage/{name}")
        assert len(images) == 3
        assert all(image.width > 300 and image.height > 200 for image in images)
        assert len({image.encoded_image_string for image in images}) == 3
    texts = [
        event.tensor_proto.string_val[0] for event in events.Tensors("usage/dead/text_summary")
    ]
    assert texts == [b"2 of 5: 3, 4", b"4 of 5: 0, 1, 2, 4", b"5 of 5: 0, 1, 2, 3, 4"]


# Tokens per step of the two processes: uneven, and none in one.
SHARES = [(20, 13), (7, 30), (24, 0)]
# What does not hang on which process holds a token, as the choice of a restart does.
JOINED = ["ddcl", "vq", "vq-ema", "usage", "history"]


def parts_of(step):
    generator = torch.Generator().manual_seed(step)
    scale = torch.tensor([1.0, 2.0, 0.5])
    return tuple(torch.randn(n, 3, generator=generator) * scale + step for n in SHARES[step])


def run_steps(choose):
    """State of every codebook and of a tracker after three steps on chosen parts of the batches."""
    torch.manual_seed(0)
    codebooks = {
        "ddcl": DDCLCodebook(3, 6, temperature=CodesPerToken(Schedule(3.0, 1.5, steps=3))),
        "vq": VQCodebook(3, 6, decay=0.5),
        "vq-ema": VQEMACodebook(3, 6, decay=0.5),
        "vq-ema-restart": VQEMACodebook(3, 6, decay=0.5, restart_threshold=0.9),
        "ddcl-restart": DDCLCodebook(3, 6, decay=0.5, restart_threshold=0.9),
    }
    tracker = UtilizationTracker(6)
    found = {}
    for name, codebook in codebooks.items():
        codebook.initialize(choose(parts_of(0)))
        for step in range(3):
            out = codebook(choose(parts_of(step)))
            codebook.after_step(out)
            tracker.update(out.indices)
        found[name] = codebook.state_dict()
        if name == "vq-ema":
            found["usage"] = vars(tracker.compute())
            found["history"] = {"history": tracker.end_epoch().counts}
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(run_steps(lambda parts: parts[rank]), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", [*JOINED, "vq-ema-restart", "ddcl-restart"])
def test_two_processes_end_equal(two_processes, name):
    first, second = (rank[name] for rank in two_processes)
    assert first.keys() == second.keys()
    for key, value in first.items():
        torch.testing.assert_close(value, second[key], rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", JOINED)
def test_two_processes_equal_one_with_the_joined_batch(two_processes, name):
    joined = run_steps(torch.cat)[name]
    for key, value in two_processes[0][name].items():
        torch.testing.assert_close(value, joined[key], msg=key)
    if name == "usage":
        assert joined["counts"].sum() == 3 * sum(map(sum, SHARES))


@pytest.mark.parametrize("name", ["vq-ema", "ddcl"])
def test_the_restarting_codebooks_did_restart(two_processes, name):
    plain, restarted = two_processes[0][name], two_processes[0][f"{name}-restart"]
    assert not torch.allclose(plain["codebook"], restarted["codebook"])
