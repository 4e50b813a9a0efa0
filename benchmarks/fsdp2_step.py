"""The step that training_benchmark.cpp measures with --cuda, in PyTorch: alone, by fully_shard (FSDP2), and by DistributedDataParallel.

usage: torchrun --nproc-per-node N fsdp2_step.py [--quick]

Prints one JSON object a line, by rank 0; names are those of Cairn's figures behind "torch_".
"""

import json
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

QUICK = "--quick" in sys.argv
LAYERS, WIDTH, HEADS, WORDS, LENGTH, ROWS = (4, 1024, 16, 8000, 256, 4) if QUICK else (18, 2048, 16, 32000, 512, 16)
STEPS = 5 if QUICK else 15


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(rows, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        scores = torch.matmul(q, k.transpose(-1, -2)) * (1 / math.sqrt(width // HEADS))
        mixed = torch.matmul(torch.softmax(scores + mask, -1), v)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.scores = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e4).triu(1))

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        mask = self.mask.to(x.dtype)
        for block in self.blocks:
            x = block(x, mask)
        return self.scores(x)


def measure(name, model, rank, forward=None):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    torch.manual_seed(rank)
    tokens = torch.randint(WORDS, (ROWS, LENGTH)).cuda()
    passes, steps = [], []
    for i in range(4 + STEPS):
        if i == 4:
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=forward is not None):
            scores = model(tokens)
        F.cross_entropy(scores.view(-1, WORDS), tokens.view(-1)).backward()
        torch.cuda.synchronize()
        passed = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        if i >= 4:
            passes.append(passed - begun)
            steps.append(time.perf_counter() - begun)
    if rank == 0:
        of = f"cuda_{name}_{dist.get_world_size()}_ranks"
        for what, value, unit in (("pass", statistics.median(passes), "s"), ("step", statistics.median(steps), "s"),
                                  ("peak", torch.cuda.max_memory_allocated() / 2**20, "MiB")):
            print(json.dumps({"name": f"torch_training_{what}_{of}", "value": value, "unit": unit}), flush=True)


def main():
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    measure("alone", Transformer().cuda().bfloat16(), rank)
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    model = Transformer().cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    measure("fully_shard", model, rank)
    del model
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    measure("replicate", nn.parallel.DistributedDataParallel(Transformer().cuda()), rank, forward="autocast")
    dist.destroy_process_group()


main()
