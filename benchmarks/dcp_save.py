"""The time that PyTorch's own distributed checkpoint takes for the save that Cairn's benchmark measures: the number to beat.

usage: dcp_save.py [DIRECTORY [REPEATS [TENSORS]]]      read from standard input works as well: python3 - < dcp_save.py

64 float32 tensors of 16 MiB (1 GiB in all), each sharded on dimension 0 over 4 Gloo ranks, DCP's defaults (files are synced). Prints
one line of JSON with the median time in seconds; its name is that of Cairn's figure for the same work behind "dcp_".
"""

import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time

RANKS, ROWS, COLUMNS = 4, 4096, 1024


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_rank(rank, port, directory, repeats, tensors):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {f"layer.{i}": DTensor.from_local(torch.full((ROWS // RANKS, COLUMNS), float(i + rank)), mesh, [Shard(0)], run_check=False)
             for i in range(tensors)}
    times = []
    for repeat in range(repeats + 1):  # the first one warms up
        if rank == 0:
            shutil.rmtree(os.path.join(directory, "step"), ignore_errors=True)
        dist.barrier()
        begun = time.perf_counter()
        dcp.save(state, checkpoint_id=os.path.join(directory, "step"))
        dist.barrier()
        if repeat > 0:
            times.append(time.perf_counter() - begun)
    if rank == 0:
        mebibytes = tensors * ROWS * COLUMNS * 4 >> 20
        size = f"{mebibytes >> 10}gib" if mebibytes % 1024 == 0 else f"{mebibytes}mib"
        print(json.dumps({"name": f"dcp_save_{size}_{RANKS}_ranks", "value": statistics.median(times), "unit": "s", "times": times,
                          "pytorch": torch.__version__}), flush=True)
    dist.destroy_process_group()


def main():
    directory = tempfile.mkdtemp(prefix="dcp_save_", dir=sys.argv[1] if len(sys.argv) > 1 else "/dev/shm")
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    tensors = int(sys.argv[3]) if len(sys.argv) > 3 else 64
    port = free_port()
    # Forked, not spawned, so that the program may come from standard input.
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_rank(rank, port, directory, repeats, tensors)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    shutil.rmtree(directory, ignore_errors=True)
    sys.exit(1 if failed else 0)


main()
