"""Proves with real PyTorch that a checkpoint written by Cairn is one of PyTorch's own.

    $CAIRN_PYTORCH check_interchange.py CHECKPOINT EXPECTED.json [--overwritten DIR] [--torch-file FILE] [--torch-save FILE]

CHECKPOINT is a directory that Cairn wrote. EXPECTED.json says what it must hold, by flattened name:

    {
      "tensors": {"model.weight": {"dtype": "float32", "shape": [2, 3], "hex": "0000803f…"}},   whole tensors, row-major, little-endian
      "values":  {"epoch": "3", "lrs": "[0.1, 0.01]", "pair": "(1, 'a')"},                       Python literals
      "blobs":   {"losses": "80025d…"},                                                           content of io.BytesIO objects, hex
      "paths":   {"model.weight": ["model", "weight"], "list.0": ["list", 0]}                     how names nest; one for each name
    }

Checked, each against EXPECTED.json, exactly:

    metadata     pickle.load and FileSystemReader.read_metadata: names, shapes, dtypes, chunks that tile, paths
    items        torch.load of every stored item, cut out of its file: tensors with weights_only and without, and by mmap
    dcp.load     into zeros, nested as saved
    conversion   dcp_to_torch_save, then torch.load
    overwriting  dcp.save to a copy of CHECKPOINT leaves one that is PyTorch's alone; with --overwritten it is kept in DIR, for Cairn to
                 read: {"step": 7, "model": {"weight": the float64 numbers 0 to 11, shaped 3x4}}. If CHECKPOINT is compressed, so is this

    torch file   with --torch-file, what `cairn convert --to torch` made of it: torch.load(weights_only=True), also by mmap; blobs are bytes

With --torch-save, torch.save writes what dcp.load gave to FILE, for Cairn to read.

Prints one line a step and exits with 0; the first difference is an exception, which exits with 1. Needs PyTorch 2.6 or newer and
nothing else, but for a compressed checkpoint the package zstandard, without which it exits with 77. Leaves CHECKPOINT as it was.
"""

import argparse
import ast
import io
import json
import os
import pickle
import pickletools
import shutil
import sys
import tempfile
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

warnings.filterwarnings("ignore")


class Expected:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        self.tensors = {name: self._tensor(entry) for name, entry in content.get("tensors", {}).items()}
        self.values = {name: ast.literal_eval(text) for name, text in content.get("values", {}).items()}
        self.blobs = {name: bytes.fromhex(text) for name, text in content.get("blobs", {}).items()}
        self.paths = {name: tuple(path) for name, path in content["paths"].items()}
        self.names = set(self.tensors) | set(self.values) | set(self.blobs)
        must(set(self.paths) == self.names, f"EXPECTED.json: paths and names differ: {set(self.paths) ^ self.names}")

    @staticmethod
    def _tensor(entry):
        dtype = getattr(torch, entry["dtype"])
        raw = bytearray(bytes.fromhex(entry["hex"]))
        if not raw:
            return torch.empty(entry["shape"], dtype=dtype)
        return torch.frombuffer(raw, dtype=dtype).reshape(entry["shape"])

    def check(self, name, found):
        if name in self.tensors:
            must(isinstance(found, torch.Tensor), f"{name}: {type(found)} instead of a tensor")
            check_tensor(name, found, self.tensors[name])
        elif name in self.blobs:
            must(isinstance(found, io.BytesIO), f"{name}: {type(found)} instead of an io.BytesIO")
            must(found.getvalue() == self.blobs[name], f"{name}: other bytes")
        else:
            wanted = self.values[name]
            must(type(found) is type(wanted) and found == wanted, f"{name}: {found!r} instead of {wanted!r}")


def must(holds, what):
    if not holds:
        raise AssertionError(what)


def raw_bytes(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def check_tensor(name, found, wanted):
    must(found.dtype == wanted.dtype, f"{name}: {found.dtype} instead of {wanted.dtype}")
    must(found.shape == wanted.shape, f"{name}: {tuple(found.shape)} instead of {tuple(wanted.shape)}")
    # By bytes: NaNs are equal to themselves, and types without arithmetic compare too.
    must(raw_bytes(found) == raw_bytes(wanted), f"{name}: other elements")


def at_path(root, path):
    for step in path:
        root = root[step]
    return root


def set_at_path(root, path, value):
    for step, following in zip(path, path[1:]):
        empty = [] if isinstance(following, int) else {}
        if isinstance(root, list):
            root.extend([None] * (step + 1 - len(root)))
            if root[step] is None:
                root[step] = empty
        else:
            root.setdefault(step, empty)
        root = root[step]
    if isinstance(root, list):
        root.extend([None] * (path[-1] + 1 - len(root)))
    root[path[-1]] = value


def part_of(tensor, offsets, sizes):
    for dim, (offset, size) in enumerate(zip(offsets, sizes)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def check_metadata(directory, expected):
    with open(os.path.join(directory, ".metadata"), "rb") as file:
        metadata = pickle.load(file)
    again = FileSystemReader(directory).read_metadata()
    must(again.state_dict_metadata == metadata.state_dict_metadata, "the two ways to read the metadata differ")
    must(metadata.storage_meta.save_id.startswith("cairn-"), f"save id {metadata.storage_meta.save_id!r} does not name Cairn")
    must(set(metadata.state_dict_metadata) == expected.names,
         f"names differ: {set(metadata.state_dict_metadata) ^ expected.names}")
    must(set(metadata.planner_data) <= expected.names, "paths of names that do not exist")
    for name, entry in metadata.state_dict_metadata.items():
        must(tuple(metadata.planner_data[name]) == expected.paths[name], f"{name}: path {metadata.planner_data[name]}")
        if isinstance(entry, BytesStorageMetadata):
            must(name not in expected.tensors, f"{name}: a tensor is recorded as bytes")
            continue
        must(isinstance(entry, TensorStorageMetadata), f"{name}: {type(entry)}")
        wanted = expected.tensors[name]
        must(entry.size == wanted.shape, f"{name}: size {entry.size}")
        must(entry.properties.dtype == wanted.dtype, f"{name}: {entry.properties.dtype}")
        covered = torch.zeros(wanted.shape, dtype=torch.int32)
        for chunk in entry.chunks:
            part_of(covered, chunk.offsets, chunk.sizes).add_(1)
        must(bool((covered == 1).all()), f"{name}: its chunks do not tile it")
    return metadata


def is_compressed(metadata):
    return any(getattr(info, "transform_descriptors", None) for info in metadata.storage_data.values())


def zstandard():
    """PyTorch's extension, or nothing where it or its package is missing."""
    try:
        from torch.distributed.checkpoint._extension import ZStandard
    except ImportError:
        return None
    return ZStandard if ZStandard.is_available() else None


def register_masked():
    """Makes all of PyTorch's readers know the extension whose counterpart write_sample registers with Cairn."""
    from torch.distributed.checkpoint import _extension, filesystem
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
    mask = bytes(byte ^ 0x5A for byte in range(256))

    class Reader(io.RawIOBase):
        def __init__(self, stored):
            super().__init__()
            self.stored = stored

        def readable(self):
            return True

        def readinto(self, to):
            found = self.stored.read(len(to))
            to[:len(found)] = found.translate(mask)
            return len(found)

    class Masked(StreamTransformExtension):
        @staticmethod
        def registry_name():
            return "stream.masked"

        @staticmethod
        def from_descriptor(version):
            must(version == "1", f"stream.masked/{version}")
            return Masked()

        def get_descriptor(self):
            return "stream.masked/1"

        def transform_to(self, output):
            raise NotImplementedError

        def transform_from(self, input):
            return Reader(input)

    class Registry(ExtensionRegistry):
        def __init__(self):
            super().__init__()
            self.register(Masked)

    filesystem.ExtensionRegistry = _extension.ExtensionRegistry = Registry


def without_transforms(info, stored):
    stream = io.BytesIO(stored)
    if getattr(info, "transform_descriptors", None):
        from torch.distributed.checkpoint._extension import ExtensionRegistry
        for extension in ExtensionRegistry().from_descriptor_list(info.transform_descriptors):
            stream = extension.transform_from(stream)
    return stream.read()


def check_items(directory, metadata, expected):
    covered = set()
    for index, info in metadata.storage_data.items():
        with open(os.path.join(directory, info.relative_path), "rb") as file:
            file.seek(info.offset)
            archive = file.read(info.length)
        must(len(archive) == info.length, f"{index.fqn}: its file ends within it")
        archive = without_transforms(info, archive)
        covered.add(index.fqn)
        if index.fqn not in expected.tensors:
            expected.check(index.fqn, torch.load(io.BytesIO(archive), weights_only=index.fqn not in expected.blobs))
            continue
        # Where an empty chunk begins with one that has elements, the location is the latter's.
        here = [chunk.sizes for chunk in metadata.state_dict_metadata[index.fqn].chunks if chunk.offsets == index.offset]
        wanted = part_of(expected.tensors[index.fqn], index.offset, max(here, key=lambda sizes: sizes.numel()))
        for weights_only in (True, False):
            check_tensor(index.fqn, torch.load(io.BytesIO(archive), weights_only=weights_only), wanted)
        with tempfile.NamedTemporaryFile() as single:
            single.write(archive)
            single.flush()
            check_tensor(index.fqn, torch.load(single.name, mmap=True, weights_only=True), wanted)
    must(covered == expected.names, f"without a location: {expected.names - covered}")
    return len(metadata.storage_data)


def check_dcp_load(directory, expected, target):
    state = {}
    for name, path in expected.paths.items():
        set_at_path(state, path, torch.zeros_like(expected.tensors[name]) if name in expected.tensors else None)
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    for name, path in expected.paths.items():
        expected.check(name, at_path(state, path))
    if target:
        torch.save(state, target)


def check_torch_file(path, expected):
    for options in ({}, {"mmap": True}):
        state = torch.load(path, weights_only=True, **options)
        for name, at in expected.paths.items():
            found = at_path(state, at)
            if name in expected.blobs:
                must(found == expected.blobs[name], f"{name}: other bytes")
            else:
                expected.check(name, found)


def check_conversion(directory, expected):
    with tempfile.TemporaryDirectory() as scratch:
        target = os.path.join(scratch, "converted.pt")
        dcp_to_torch_save(directory, target)
        state = torch.load(target, weights_only=False)
    for name, path in expected.paths.items():
        expected.check(name, at_path(state, path))


def check_overwriting(directory, target, compressed):
    weight = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    shutil.copytree(directory, target, dirs_exist_ok=True)
    options = {"storage_writer": FileSystemWriter(target, _extensions=[zstandard()()])} if compressed else {"checkpoint_id": target}
    dcp.save({"step": 7, "model": {"weight": weight}}, no_dist=True, **options)
    record = os.path.join(target, ".metadata")
    with open(record, "rb") as file:
        for _ in pickletools.genops(file):
            pass
        must(file.tell() == os.path.getsize(record), "PyTorch's metadata is followed by something")
    state = {"step": 0, "model": {"weight": torch.zeros(3, 4, dtype=torch.float64)}}
    dcp.load(state, checkpoint_id=target, no_dist=True)
    must(state["step"] == 7 and torch.equal(state["model"]["weight"], weight), "PyTorch does not read what it wrote")
    with open(record, "rb") as file:
        written = pickle.load(file)
        must(is_compressed(written) == compressed, "PyTorch did not record how it stored its items")
        must(not written.storage_meta.save_id.startswith("cairn-"), "the save is still called Cairn's")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("expected")
    parser.add_argument("--overwritten", metavar="DIR", help="keep the checkpoint that PyTorch wrote over Cairn's")
    parser.add_argument("--torch-file", metavar="FILE", help="what cairn convert --to torch made of the same state")
    parser.add_argument("--torch-save", metavar="FILE", help="where torch.save writes the state, for Cairn to read")
    arguments = parser.parse_args()
    expected = Expected(arguments.expected)
    print(f"PyTorch {torch.__version__}, {arguments.checkpoint}: {len(expected.tensors)} tensors, {len(expected.values)} values, "
          f"{len(expected.blobs)} byte objects")

    metadata = check_metadata(arguments.checkpoint, expected)
    compressed = is_compressed(metadata)
    if compressed and zstandard() is None:
        print("skipped: this PyTorch cannot read compressed items, for which it needs the package zstandard")
        sys.exit(77)
    if compressed:
        register_masked()
    print("metadata: pickle.load and read_metadata agree with what was saved")
    print(f"items: torch.load reads all {check_items(arguments.checkpoint, metadata, expected)} equal, with weights_only, without, by mmap")
    check_dcp_load(arguments.checkpoint, expected, arguments.torch_save)
    print("dcp.load: equal")
    check_conversion(arguments.checkpoint, expected)
    print("dcp_to_torch_save: equal")
    if arguments.torch_file:
        check_torch_file(arguments.torch_file, expected)
        print("torch file: equal, with weights_only, by mmap too")
    with tempfile.TemporaryDirectory() as scratch:
        check_overwriting(arguments.checkpoint, arguments.overwritten or os.path.join(scratch, "copy"), compressed)
    print("overwriting: dcp.save leaves a checkpoint that is PyTorch's")


if __name__ == "__main__":
    main()
