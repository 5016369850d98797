"""A rank of test_two_gpus.py, a process a GPU: ``python gpu_rank.py CASE RANK SIZE PORT`` prints JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ptxrt
from ptxrt import ops
from ptxrt.distributed import Communicator, Group, as_communicator

SHAPE = (37, 6, 12, 12)
LIMIT = 10.0


def drawn(dtype: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return rng.normal(3, 2, SHAPE).astype(dtype), rng.normal(0.1, 1, SHAPE).astype(dtype)


def step(communicator: Any, x: Any, go: Any, stream: Any = None, exact: bool = True) -> dict[str, Any]:
    """Return all results of a training step, on the host."""
    device = as_communicator(communicator).device
    x, go = (ptxrt.to_device(array, device, stream=stream) for array in (x, go))
    w, running = ptxrt.full(SHAPE[1], 1.5, "f4", device), [ptxrt.ones(SHAPE[1], "f4", device) for _ in range(2)]
    device.default_stream.synchronize()
    how: Any = {"training": True, "communicator": communicator, "stream": stream, "exact": exact}
    y, mean, var = ops.batch_norm(x, w, None, *running, **how)
    grads: Any = ops.batch_norm_backward(go, x, w, None, None, batch_mean=mean, batch_var=var, **how)
    return {str(i): a.to_host(stream) for i, a in enumerate((y, grads[0], mean, var, *running, *grads[1:]))}


def same(communicator: Any, rank: int, size: int, stream: Any = None) -> list[str]:
    """Return which results have other bits than one GPU's, over twenty batches of two types, cut unevenly."""
    wrong = []
    device = as_communicator(communicator).device
    ends = [0, *(SHAPE[0] * (r + 1) ** 2 // size**2 for r in range(size))]
    own = slice(ends[rank], ends[rank + 1])
    for dtype in ("f4", "f2"):
        x, go = drawn(dtype)
        for turn in range(20):
            x = np.roll(x, 1, 0) * np.dtype(dtype).type(1.01 if turn % 2 else 0.99)
            whole = step(Group(1, device).ranks[0], x, go)
            mine = step(communicator, x[own], go[own], stream)
            for name, values in whole.items():
                part = values[own] if name in "01" else values
                if part.tobytes() != mine[name].tobytes():
                    wrong.append(f"{dtype}, batch {turn}: result {name}")
    return wrong


def rounded(communicator: Any, rank: int, size: int) -> tuple[float, list[str]]:
    """Return how far rounded sums are from exact ones, and all that must be the same on all ranks and in each run."""
    (x, go), device = drawn("f4"), as_communicator(communicator).device
    x += 1e4
    own = slice(SHAPE[0] * rank**2 // size**2, SHAPE[0] * (rank + 1) ** 2 // size**2)
    whole = step(Group(1, device).ranks[0], x, go)
    runs = [step(communicator, x[own], go[own], exact=False) for _ in range(3)]
    errors = [0.0]
    for name, values in whole.items():
        part = values[own] if name in "01" else values
        errors.append(float(np.linalg.norm(runs[0][name] - part) / np.linalg.norm(part)))
    return max(errors), [b"".join(run[name].tobytes() for name in run if name not in "01").hex() for run in runs]


def caught(work: Callable[[], Any]) -> str:
    try:
        work()
    except ptxrt.PtxrtError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def forward(communicator: Any, device: Any, **how: Any) -> Any:
    x = ptxrt.ones((4, 3, 5), "f4", device)
    return ops.batch_norm(x, None, None, None, None, training=True, communicator=communicator, **how)


def captured(communicator: Communicator, *, exact: bool) -> bool:
    """Return whether a replayed step has the bits of one that was not captured."""
    device = communicator.device
    stream = ptxrt.Stream(device)
    x = ptxrt.to_device(drawn("f4")[0][: 5 + communicator.rank], device)
    device.default_stream.synchronize()
    how: Any = {"training": True, "communicator": communicator, "exact": exact}
    with stream:
        want = ops.batch_norm(x, None, None, None, None, **how).y.to_host()
    with ptxrt.capture(stream) as graph:
        found = ops.batch_norm(x, None, None, None, None, **how)
    found.y.fill_bytes(0, stream=stream)
    for _ in range(3):
        graph.replay()
    return bool(found.y.to_host(stream).tobytes() == want.tobytes())


def with_nccl4py(rank: int, size: int) -> Any:
    """Return nccl4py's communicator; None where it is not installed."""
    import torch.distributed as dist

    try:
        import nccl.core as nccl
    except ImportError:
        return None
    made = [bytes(nccl.get_unique_id()) if rank == 0 else b""]
    dist.broadcast_object_list(made)
    return nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(made[0]))


def main(case: str, rank: int, size: int, port: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    own = torch.device("cuda", rank)
    torch.cuda.set_device(own)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=where, rank=rank, world_size=size, device_id=own)
    dist.barrier()
    group = dist.group.WORLD
    communicator = as_communicator(group)
    device = communicator.device
    seen: dict[str, Any] = {"rank": communicator.rank, "size": communicator.size, "device": str(device)}
    if case == "works":
        seen["same object"] = as_communicator(group) is communicator
        seen["wrong"] = same(group, rank, size)
        seen["wrong on a stream"] = same(group, rank, size, ptxrt.Stream(device))
        seen["captured"] = all(captured(communicator, exact=exact) for exact in (True, False))
        seen["rounded"] = rounded(group, rank, size)
        other = with_nccl4py(rank, size)
        seen["nccl4py"] = None if other is None else same(other, rank, size)
        elsewhere = f"cuda:{(rank + 1) % size}"
        seen["device"] = caught(lambda: forward(communicator, elsewhere))
        seen["disagree"] = caught(lambda: forward(communicator, device, eps=1e-3 + rank))
        seen["and goes on"] = caught(lambda: forward(communicator, device))
    else:
        communicator.timeout = LIMIT
        forward(communicator, device).y.to_host()
        if rank == size - 1:
            os._exit(9)
        how = {"eps": 1e-4} if case == "ends before a new problem" else {}

        def wait() -> None:
            forward(communicator, device, **how)
            communicator.synchronize(device.default_stream)

        seen["lost"] = caught(wait)
    return seen


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])), flush=True)
    os._exit(0)  # what waits on the device for a rank that has ended would keep the process
