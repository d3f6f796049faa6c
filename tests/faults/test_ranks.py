"""What goes wrong in one of two processes, and what DDP does to the state of both."""

import datetime
import math

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from softvq import (
    CodebookStack,
    DDCLCodebook,
    DDCLEMCodebook,
    ProductCodebook,
    StackUtilizationTracker,
    UtilizationTracker,
    VQCodebook,
    VQEMACodebook,
)

KINDS = {
    "ddcl": lambda: DDCLCodebook(4, 8),
    "ddcl-em": lambda: DDCLEMCodebook(4, 8),
    "vq": lambda: VQCodebook(4, 8),
    "vq-ema": lambda: VQEMACodebook(4, 8),
    "stack": lambda: CodebookStack([VQEMACodebook(4, 8), DDCLCodebook(4, 8)]),
    "product": lambda: ProductCodebook([VQEMACodebook(2, 8), DDCLEMCodebook(2, 8)]),
}
DEADLINE = datetime.timedelta(seconds=20)


def raised(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def outcomes(kind, rank):
    """What each call raised, whether it moved any state, and the state after a good step."""
    torch.manual_seed(0)
    module, found = KINDS[kind](), {}
    module.initialize(torch.randn(64, 4) + rank)
    good, poor = torch.randn(32, 4), torch.randn(32, 4)
    poor[3, 2] = math.nan
    of_another = KINDS["vq"]() if kind == "stack" else VQCodebook(5, 8)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for name, call, argument in (
        ("nan", module.after_step, module(poor if rank else good)),
        ("other", module.after_step, of_another(torch.randn(8, of_another.dim)) if rank
         else module(good)),
        ("start", module.initialize, torch.randn(64, 4 + rank)),
        ("start nan", module.initialize, poor if rank else good),
    ):  # fmt: skip
        error = raised(call, argument)
        state = module.state_dict()
        found[name] = error, all(torch.equal(state[n], value) for n, value in before.items())
    module.after_step(module(good))
    return found, module.state_dict()


class Counted(nn.Module):
    """A model that counts the codes of its batch in its forward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.usage = UtilizationTracker(4)
        self.levels = StackUtilizationTracker(CodebookStack([VQCodebook(2, 3), VQCodebook(2, 4)]))

    def forward(self, indices):
        self.usage.update(indices)
        self.levels.update([indices.clamp_max(2), indices])
        return self.linear(torch.ones(1, 2)).sum()


def counts(rank):
    model = DistributedDataParallel(Counted())
    for _ in range(10):  # the code of a process, five tokens a batch
        model(torch.full((5,), rank)).backward()
    own = model.module
    parts = [own.usage.compute(), *own.levels.compute()]
    own.usage.end_epoch()
    model(torch.full((5,), rank)).backward()
    return [usage.counts.tolist() for usage in parts], own.usage.history.tolist()


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=DEADLINE
    )
    torch.manual_seed(0)
    found = {"counts": counts(rank)} | {kind: outcomes(kind, rank) for kind in KINDS}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


EXPECTED = {
    "nan": ("FloatingPointError: the latents of another", "FloatingPointError: the latents given"),
    "other": ("RuntimeError: another process", "ValueError: after_step needs"),
    "start": ("RuntimeError: another process", "ValueError: latents must be"),
    "start nan": ("NaN or infinity", "NaN or infinity"),
}


@pytest.mark.parametrize("call", EXPECTED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_one_process_cannot_use_stops_both_at_once(kind, call, ranks):
    for rank, words in zip(ranks, EXPECTED[call], strict=True):
        error, unmoved = rank[kind][0][call]
        assert error is not None
        assert words in error
        assert unmoved


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_in_step_after_the_error(kind, ranks):
    first, second = (rank[kind][1] for rank in ranks)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert {int(value) for name, value in first.items() if name.endswith("steps")} == {1}


def test_a_tracker_inside_a_ddp_model_counts_every_process(ranks):
    for rank in ranks:
        parts, history = rank["counts"]
        assert parts == [[50, 50, 0, 0], [50, 50, 0], [50, 50, 0, 0]]
        assert history == [[50, 50, 0, 0]]
