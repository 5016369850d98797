"""A rank of bench.py distributed: ``python -m benchmarks.distributed_worker RANK SIZE PORT RUNS`` prints its times."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

import ptxrt
from benchmarks.distributed import SUMS
from benchmarks.distributed_model import exact_bytes
from benchmarks.ops_calls import timer
from ptxrt import ops
from ptxrt.distributed import Communicator, Group, as_communicator

__all__ = ["CASES", "SIZES"]

CASES = (
    ((64, 64, 112, 112), "f32"),
    ((64, 256, 56, 56), "f32"),
    ((64, 256, 56, 56), "f16"),
    ((64, 1024, 14, 14), "f32"),
    ((32, 2048, 7, 7), "f32"),
)
"""Shards, of each rank."""
SIZES = tuple(1 << power for power in range(8, 24, 2))
"""Bytes of an all-reduce alone."""
_TYPES = {"f32": torch.float32, "f16": torch.float16}


def _ours(
    arrays: Sequence[Any], communicator: Communicator | None = None, exact: bool = True
) -> dict[str, Callable[[], Any]]:
    x, go, w, b = arrays
    how: Any = {"training": True, "communicator": communicator, "exact": exact}
    y, mean, var = ops.batch_norm(x, w, b, None, None, **how)
    back: Any = ops.batch_norm_backward(go, x, w, None, None, batch_mean=mean, batch_var=var, **how)
    return {
        "forward": lambda: ops.batch_norm(x, w, b, None, None, out=(y, mean, var), **how),
        "backward": lambda: ops.batch_norm_backward(
            go, x, w, None, None, batch_mean=mean, batch_var=var, out=tuple(back), **how
        ),
    }


def _torch(x: Any, go: Any) -> dict[str, Callable[[], Any]]:
    module = torch.nn.SyncBatchNorm(x.shape[1]).cuda()
    x = x.detach().requires_grad_()
    y = module(x)
    inputs = (x, *module.parameters())
    return {
        "forward": lambda: module(x),
        "backward": lambda: torch.autograd.grad(y, inputs, go, retain_graph=True),
    }


def _replayed(device: ptxrt.Device, run: Callable[[], Any]) -> Callable[[], None]:
    stream = ptxrt.Stream(device)
    with ptxrt.capture(stream) as graph:
        run()
    return lambda: graph.replay(device.default_stream)


def _us(device: ptxrt.Device, run: Callable[[], Any], runs: int) -> float:
    """Return the median microseconds of a run, of the slowest rank."""
    run()
    dist.barrier()
    torch.cuda.synchronize()
    own = torch.tensor(statistics.median(timer(device, run)(runs)), device="cuda")
    dist.all_reduce(own, dist.ReduceOp.MAX)
    return float(own)


def _rows(communicator: Communicator, runs: int) -> list[dict[str, Any]]:
    device, rows = communicator.device, []
    (single,) = Group(1, device).ranks
    for shape, dtype in CASES:
        torch.manual_seed(communicator.rank)
        x, go = (torch.randn(shape, device="cuda", dtype=_TYPES[dtype]) for _ in range(2))
        w, b = torch.ones(shape[1], device="cuda"), torch.zeros(shape[1], device="cuda")
        arrays = [ptxrt.from_dlpack(each) for each in (x, go, w, b)]
        nbytes = exact_bytes(shape[1], dtype)
        sums = ptxrt.zeros(nbytes // 8, "int64", device)
        calls = {"alone": _ours(arrays)}
        for kind in SUMS:
            exact = kind == "exact"
            calls[f"{kind}, one rank"] = _ours(arrays, single, exact)
            calls[f"{kind}, ranks"] = _ours(arrays, communicator, exact)
        calls["SyncBatchNorm"] = _torch(x, go)
        reduced = _us(device, lambda: communicator.all_reduce(sums, device.default_stream), runs)  # noqa: B023 (run here)
        for turn in ("forward", "backward"):
            times = {name: _us(device, call[turn], runs) for name, call in calls.items()}
            for kind in SUMS:
                times[f"{kind}, replayed"] = _us(device, _replayed(device, calls[f"{kind}, ranks"][turn]), runs)
            case = {"turn": turn, "shape": shape, "dtype": dtype, "bytes": nbytes}
            rows.append(case | {"us": times | {"all-reduce": reduced}})
    return rows


def main(rank: int, size: int, port: str, runs: int) -> dict[str, Any]:
    """Return all times, the slowest rank's of each."""
    own = torch.device("cuda", rank)
    torch.cuda.set_device(own)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=where, rank=rank, world_size=size, device_id=own)
    dist.barrier()
    communicator = as_communicator(dist.group.WORLD)
    device, found = communicator.device, []
    for nbytes in SIZES:
        array = ptxrt.zeros(nbytes // 8, "int64", device)
        us = _us(device, lambda: communicator.all_reduce(array, device.default_stream), runs)  # noqa: B023 (run here)
        found.append({"bytes": nbytes, "us": us})
    return {"all_reduce": found, "rows": _rows(communicator, runs)}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))), flush=True)
    os._exit(0)  # torch's process group would wait for the others
