"""Proves with real PyTorch that it goes on with training state that Cairn saved, by its own unmodified calls.

    $CAIRN_PYTORCH check_training.py DIR

DIR is what train_sample.cpp left there: for each kind of optimizer a checkpoint of fully sharded state after two steps on four ranks, and
the parameters after four steps. Checked for each kind:

    keys     the checkpoint has every key that get_state_dict asks for, in four parts where a tensor has that many rows
    loading  get_state_dict, dcp.load and set_state_dict, without options: the optimizer has the saved hyperparameters
    going on two steps later the parameters are those of the ranks, up to the rounding of other kernels

Then dcp.save leaves DIR/runs/<kind>/step_4, from which train_sample resumes.

Prints one line a kind and exits with 0; the first difference is an exception, which exits with 1.
"""

import json
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

warnings.filterwarnings("ignore")

# By kind: options that decide which state there is, and hyperparameters that the load must bring.
KINDS = {
    "Adam": ({}, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1, "amsgrad": False}),
    "AdamW": ({"amsgrad": True}, {"lr": 0.01, "weight_decay": 0.01, "amsgrad": True}),
    "SGD": ({"momentum": 0.9}, {"lr": 0.05, "momentum": 0.9}),
    "RMSprop": ({"centered": True, "momentum": 0.5}, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "Adagrad": ({}, {"lr": 0.05, "lr_decay": 0.01}),
}


def must(holds, what):
    if not holds:
        raise AssertionError(what)


def check(directory, kind, structure, wanted):
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.5, **structure)
    defaults = set(optimizer.defaults)
    metadata = FileSystemReader(f"{directory}/{kind}").read_metadata().state_dict_metadata
    for option in defaults:
        must(f"optim.param_groups.0.{option}" in metadata, f"{kind}: the checkpoint lacks the option {option}")
    must(len(metadata["model.0.weight"].chunks) == 4, f"{kind}: the weight is not in four parts")

    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.load({"model": of_model, "optim": of_optimizer}, checkpoint_id=f"{directory}/{kind}", no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    group = optimizer.param_groups[0]
    for option, value in wanted.items():
        must(group[option] == value, f"{kind}: {option} is {group[option]} instead of {value}")
    must(defaults <= set(group), f"{kind}: options are gone: {defaults - set(group)}")

    rows = torch.arange(20, dtype=torch.float64).reshape(4, 5).to(torch.float32) * 0.1
    for _ in range(2):
        optimizer.zero_grad()
        model(rows).pow(2).mean().backward()
        optimizer.step()
    with open(f"{directory}/{kind}.json", encoding="utf-8") as file:
        expected = json.load(file)["4"]
    must(set(expected) == set(model.state_dict()), f"{kind}: other parameters: {sorted(expected)}")
    for name, parameter in model.named_parameters():
        difference = (parameter.detach().flatten() - torch.tensor(expected[name])).abs().max().item()
        must(difference < 1e-5, f"{kind}: {name} differs by {difference}")
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optim": of_optimizer}, checkpoint_id=f"{directory}/runs/{kind}/step_4", no_dist=True)
    print(f"{kind}: PyTorch {torch.__version__} goes on where four ranks of Cairn stopped")


def main():
    for kind, (structure, wanted) in KINDS.items():
        check(sys.argv[1], kind, structure, wanted)


if __name__ == "__main__":
    main()
