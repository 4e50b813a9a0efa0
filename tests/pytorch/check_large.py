"""check_large.py DIR N: a checkpoint with `large` = arange(N, int32) and `second` = arange(100) opens in PyTorch, nothing of Cairn's involved."""
import sys

import torch
import torch.distributed.checkpoint as dcp

directory, count = sys.argv[1], int(sys.argv[2])
state = {"large": torch.zeros(count, dtype=torch.int32), "second": torch.zeros(100, dtype=torch.int64)}
dcp.load(state, checkpoint_id=directory, no_dist=True)
piece = 1 << 26
for begin in range(0, count, piece):
    end = min(begin + piece, count)
    assert torch.equal(state["large"][begin:end], torch.arange(begin, end, dtype=torch.int32)), begin
assert torch.equal(state["second"], torch.arange(100))
print("PyTorch", torch.__version__, "read", count, "elements")
