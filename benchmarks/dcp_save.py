"""The rate at which PyTorch's own distributed checkpoint does what Cairn's benchmarks measure: the number to beat.

usage: dcp_save.py [--at DIRECTORY] [--repeat N] [--tensors N] [--ranks N] [--mib N [--cuda] [--cold]]

Without --mib: 64 float32 tensors of 16 MiB (1 GiB in all), each sharded on dimension 0 over 4 Gloo ranks; prints the time of a save. With
--mib: the state of cairn_engine_benchmark, so many MiB on each rank, with --cuda on device r of rank r; prints the rates of saves and
loads, with --cold of loads that find nothing in the page cache. DCP's defaults; the first save and load warm up.

Prints lines of JSON with medians; a name is that of Cairn's figure for the same work behind "dcp_". The program may be read from standard
input: python3 - [OPTION...] < dcp_save.py
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time

ROWS, COLUMNS = 4096, 1024


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def state_of(rank, options):
    """Tensors of ints that this rank alone has, or its rows of tensors that are sharded over all."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    if options.mib:
        count = (options.mib << 20) // options.tensors // 4
        device = f"cuda:{rank}" if options.cuda else "cpu"
        return {f"tensor.{rank}.{i}": torch.full((count,), i, dtype=torch.int32, device=device) for i in range(options.tensors)}
    mesh = init_device_mesh("cpu", (options.ranks,))
    return {f"layer.{i}": DTensor.from_local(torch.full((ROWS // options.ranks, COLUMNS), float(i + rank)), mesh, [Shard(0)],
                                             run_check=False) for i in range(options.tensors)}


def forget_cached(directory):
    for entry in os.scandir(directory):
        with open(entry.path, "rb") as file:
            os.fdatasync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_rank(rank, port, directory, options):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    if not options.mib:
        torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(options.ranks),
                      GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.cuda else "gloo",
                            **({"device_id": torch.device("cuda", rank)} if options.cuda else {}))
    if options.cuda:
        torch.cuda.set_device(rank)
    step = os.path.join(directory, "step")
    state = state_of(rank, options)

    def seconds_of(act):
        dist.barrier()
        begun = time.perf_counter()
        act()
        if options.cuda:
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter() - begun

    saves, loads = [], []
    for _ in range(options.repeat + 1):
        if rank == 0:
            shutil.rmtree(step, ignore_errors=True)
        saves.append(seconds_of(lambda: dcp.save(state, checkpoint_id=step)))
        if options.mib:
            if rank == 0 and options.cold:
                forget_cached(step)
            loads.append(seconds_of(lambda: dcp.load(state, checkpoint_id=step)))
    if rank == 0:
        report(saves[1:], loads[1:], options)
    dist.destroy_process_group()


def report(saves, loads, options):
    def show(name, value, unit):
        print(json.dumps({"name": f"dcp_{name}", "value": value, "unit": unit}), flush=True)

    if not options.mib:
        mebibytes = options.tensors * ROWS * COLUMNS * 4 >> 20
        size = f"{mebibytes >> 10}gib" if mebibytes % 1024 == 0 else f"{mebibytes}mib"
        show(f"save_{size}_{options.ranks}_ranks", statistics.median(saves), "s")
        return
    work = f"{options.ranks}_ranks_{options.mib}_mib_{options.tensors}_tensors{'_cuda' if options.cuda else ''}{'_cold' if options.cold else ''}"
    for name, seconds in (("save", saves), ("load", loads)):
        show(f"{name}_{work}", options.ranks * (options.mib << 20) / statistics.median(seconds) / 1e9, "GB/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", default="/dev/shm")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--mib", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tensors", type=int)
    options = parser.parse_args()
    options.ranks = options.ranks or (1 if options.mib else 4)
    options.tensors = options.tensors or (32 if options.mib else 64)
    directory = tempfile.mkdtemp(prefix="dcp_save_", dir=options.at)
    port = free_port()
    # Forked, not spawned, so that the program may come from standard input.
    children = []
    for rank in range(options.ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_rank(rank, port, directory, options)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    shutil.rmtree(directory, ignore_errors=True)
    sys.exit(1 if failed else 0)


main()
