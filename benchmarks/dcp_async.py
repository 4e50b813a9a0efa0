"""How long PyTorch's own asynchronous save stops the trainer, on the tensors of async_benchmark.cpp, on the first CUDA device.

usage: dcp_async.py [DIRECTORY]

Prints one JSON object a line; names are those of Cairn's figures for the same work behind "dcp_" (its defaults), and behind
"dcp_cached_" (with its staging memory kept and page-locked).
"""

import json
import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager

MIB = 1 << 20


def stalls(tensors, directory, cached, saves):
    stager = BlockingAsyncStager(cache_staged_state_dict=True) if cached else None
    state = {f"tensor{i}": tensor for i, tensor in enumerate(tensors)}
    times = []
    for _ in range(saves):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        saving = dcp.async_save(state, checkpoint_id=os.path.join(directory, "step"), **({"async_stager": stager} if cached else {}))
        times.append(time.perf_counter() - begun)
        saving.result()
        shutil.rmtree(os.path.join(directory, "step"))
    return times


def main():
    directory = tempfile.mkdtemp(prefix="dcp_async_", dir=sys.argv[1] if len(sys.argv) > 1 else "/dev/shm")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", 0))
    for name, count, each in (("one_tensor", 1, 8192 * MIB), ("1000_tensors", 1000, MIB)):
        tensors = [torch.full((each // 4,), float(i), device="cuda") for i in range(count)]
        for prefix, cached in (("dcp", False), ("dcp_cached", True)):
            times = stalls(tensors, directory, cached, 2 if name == "one_tensor" else 3)
            for which, value in (("first_after_prepare", times[0]), ("tenth", times[-1])):
                print(json.dumps({"name": f"{prefix}_async_stall_cuda_{name}_{which}", "value": value, "unit": "s"}), flush=True)
        del tensors
    shutil.rmtree(directory)
    dist.destroy_process_group()


main()
