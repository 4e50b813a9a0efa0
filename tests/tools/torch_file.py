"""Files as torch.save writes them, made without PyTorch."""

import collections
import io
import pickle
import struct
import sys
import types
import unittest.mock
import zipfile

# Of an element, as struct spells it; of dtypes that are not here, a byte.
FORMATS = {"Float": "f", "Double": "d", "Long": "q", "Bool": "?", "ComplexFloat": "ff", "ComplexDouble": "dd",
           "uint16": "H", "uint32": "I", "uint64": "Q"}


class DType:
    """torch.<name>"""

    def __init__(self, name):
        self.name, self.__module__ = name, "torch"


class Tensor:
    """Of one dimension. `kind`: of a storage class ("Float"), or a dtype that has none ("uint64"). Complex numbers are two parts each."""

    def __init__(self, kind, parts, negated=False, requires_grad=False):
        self.kind, self.negated, self.requires_grad, format = kind, negated, requires_grad, FORMATS.get(kind, "B")
        self.count = len(parts) // len(format)
        self.content = struct.pack("<" + format * self.count, *parts)
        self.is_typed = kind[0].isupper()


class Storage:
    def __init__(self, tensor):
        self.tensor = tensor


def stand_in(module, name):
    """What is pickled as that name."""
    made = type(name, (), {"__module__": module.__name__})
    setattr(module, name, made)
    return made


def save(path, value):
    """Returns where in the file the elements of each tensor begin, in the order in which they are pickled."""
    torch, utilities = types.ModuleType("torch"), types.ModuleType("torch._utils")
    storages = {kind: stand_in(torch, kind + "Storage") for kind in FORMATS if kind[0].isupper()}
    untyped = stand_in(torch, "UntypedStorage")
    rebuild = {version: stand_in(utilities, f"_rebuild_tensor_v{version}") for version in (2, 3)}
    tensors = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, part):
            if not isinstance(part, Storage):
                return None
            tensors.append(part.tensor)
            storage, size = storages.get(part.tensor.kind, untyped), part.tensor.count
            return "storage", storage, str(len(tensors) - 1), "cpu", size if part.tensor.is_typed else len(part.tensor.content)

        def reducer_override(self, part):
            if isinstance(part, DType):
                setattr(torch, part.name, part)
                return part.name
            if not isinstance(part, Tensor):
                return NotImplemented
            arguments = (Storage(part), 0, (part.count,), (1,), part.requires_grad, collections.OrderedDict())
            if not part.is_typed:
                return rebuild[3], arguments + (DType(part.kind),)
            return rebuild[2], arguments + (({"neg": True},) if part.negated else ())

    pickled = io.BytesIO()
    with unittest.mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utilities}):
        Pickler(pickled, protocol=2).dump(value)
    begins = []
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled.getvalue())
        for number, tensor in enumerate(tensors):
            entry = zipfile.ZipInfo(f"archive/data/{number}")
            begin = archive.fp.tell() + 30 + len(entry.filename) + 4  # behind the header, and that of the field that aligns it
            entry.extra = struct.pack("<2sH", b"FB", -begin % 64) + bytes(-begin % 64)
            archive.writestr(entry, tensor.content)
            begins.append(begin + -begin % 64)
        archive.writestr("archive/version", "3\n")
    return begins
