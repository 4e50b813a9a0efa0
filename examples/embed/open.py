"""Opens the checkpoint of main.cpp with PyTorch alone: open.py DIRECTORY/step_7"""
import sys

import torch
import torch.distributed.checkpoint

checkpoint = sys.argv[1]

state = {"weights": torch.zeros(3, 4), "step": 0}
torch.distributed.checkpoint.load(state, checkpoint_id=checkpoint)

print("step", state["step"])
print(state["weights"])
