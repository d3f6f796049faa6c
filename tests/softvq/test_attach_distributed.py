"""attach under DDP: two processes end with one state, that of one process on the whole batch."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from softvq import CodebookStack, DDCLCodebook, DDCLEMCodebook, VQEMACodebook, attach

State = dict[str, torch.Tensor]
# Noise, and the latents that restart a prototype, are drawn from what each process has.
SETTLED = {"restart_threshold": 0.0}
KINDS = {
    "ddcl": lambda: DDCLCodebook(4, 8, noise=0.0, **SETTLED),
    "ddcl-em": lambda: DDCLEMCodebook(4, 8, **SETTLED),
    "vq-ema": lambda: VQEMACodebook(4, 8, **SETTLED),
    "stack": lambda: CodebookStack(
        [DDCLEMCodebook(4, 8, **SETTLED), VQEMACodebook(4, 8, **SETTLED)]
    ),
}


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), KINDS[kind]())


def started(kind: str) -> State:
    """A state with prototypes from some latents, the same for all."""
    model = model_of(kind).double()
    model[1].initialize(torch.randn(64, 4, generator=torch.Generator().manual_seed(2)).double())
    return model.state_dict()


def trained(kind: str, rank: int | None, start: State | None) -> State:
    """The state after some steps on halves of the batches, or, without a rank, on the whole."""
    model = model_of(kind).double()
    if start is not None:
        model.load_state_dict(start)
    parallel = model if rank is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    attach(parallel, optimizer)
    data = torch.randn(8, 256, 6, generator=torch.Generator().manual_seed(1)).double()
    for batch in data:
        part = batch if rank is None else batch[rank::2]
        # Half and half: the mean of the processes' gradients is that of the whole batch.
        out = parallel(part)
        optimizer.zero_grad()
        (out.quantized.square().mean() + out.loss).backward()
        optimizer.step()
    return model.state_dict()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    starts = {kind: (started(kind), None) for kind in KINDS}  # of this process alone
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    states = {(k, own is not None): trained(k, rank, own) for k in KINDS for own in starts[k]}
    torch.save(states, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    mp.spawn(work, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_both_processes_end_with_the_same_bits(kind, by_hand, states):
    first, second = (state[kind, by_hand] for state in states)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    steps = [value for name, value in first.items() if name.endswith("steps")]
    assert [int(value) for value in steps] == [8] * len(steps)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_that_of_one_process_with_the_whole_batch(kind, states):
    # From the same prototypes: k-means draws otherwise from latents in another order.
    alone = trained(kind, None, started(kind))
    for name, value in states[0][kind, True].items():
        torch.testing.assert_close(value, alone[name], rtol=1e-9, atol=1e-12, msg=name)
