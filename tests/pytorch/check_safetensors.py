"""Proves with real PyTorch that safetensors files written by Cairn are those of its HuggingFaceStorageWriter.

    $CAIRN_PYTORCH check_safetensors.py DIR EXPECTED.json

Cairn wrote DIR/model, DIR/distributed and DIR/joined, with the tensors of EXPECTED.json (see check_interchange.py) that are below "model"
and not complex. PyTorch reads them, and writes DIR/pytorch and DIR/pytorch_distributed, for Cairn to read.
Without the package `safetensors`, the few functions of it that PyTorch calls are replaced by those below. Prints one line a step.
"""

import inspect
import json
import struct
import sys
import types
import warnings

import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
          "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


class Slice:
    def __init__(self, entry, data):
        self.entry, self.data = entry, data

    def get_shape(self):
        return self.entry["shape"]

    def get_dtype(self):
        return self.entry["dtype"]

    def __getitem__(self, slices):
        dtype, shape = DTYPES[self.entry["dtype"]], self.entry["shape"]
        if not self.data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=torch.uint8).view(dtype).reshape(shape)[slices]


class safe_open:
    def __init__(self, filename, framework):
        with open(filename, "rb") as file:
            data = file.read()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        self.header, self.body = json.loads(data[8:end]), data[end:]
        self.extra = self.header.pop("__metadata__", None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def keys(self):
        return list(self.header)

    def metadata(self):
        return self.extra

    def get_slice(self, key):
        begin, end = self.header[key]["data_offsets"]
        return Slice(self.header[key], self.body[begin:end])


def save(tensors, metadata=None):
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, body = {"__metadata__": metadata or {}}, b""
    for key, tensor in tensors.items():
        data = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
        header[key] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def provide_safetensors():
    try:
        import safetensors.torch  # noqa: F401
    except ImportError:
        package, inner = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
        package.safe_open, package.torch = safe_open, inner
        inner.save, inner._getdtype = save, DTYPES.__getitem__
        sys.modules.update({"safetensors": package, "safetensors.torch": inner})


def expected_tensors(path):
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)["tensors"]
    tensors = {}
    for name, entry in entries.items():
        if name.startswith("model.") and not entry["dtype"].startswith("complex"):
            dtype, data = getattr(torch, entry["dtype"]), bytearray(bytes.fromhex(entry["hex"]))
            flat = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if data else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


def check(directory, expected):
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    names = set(HuggingFaceStorageReader(path=directory).read_metadata().state_dict_metadata)
    assert names == set(expected), f"{directory}: {names ^ set(expected)}"
    state = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(path=directory), no_dist=True)
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), f"{directory}: {name}: {state[name]}"
    print(f"PyTorch read {directory}")


def main(directory, expected_path):
    provide_safetensors()
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        is_new = "save_distributed" in inspect.signature(HuggingFaceStorageWriter).parameters
    except ImportError:
        is_new = False
    if not is_new:
        print(f"skipped: PyTorch {torch.__version__} has no distributed safetensors files")
        return
    expected = expected_tensors(expected_path)
    for form in ("model", "distributed", "joined"):
        check(f"{directory}/{form}", expected)
    for form in ("pytorch", "pytorch_distributed"):
        writer = HuggingFaceStorageWriter(path=f"{directory}/{form}", save_distributed=form.endswith("distributed"))
        dcp.save(dict(expected), storage_writer=writer, no_dist=True)
        check(f"{directory}/{form}", expected)


main(*sys.argv[1:])
