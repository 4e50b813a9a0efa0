"""Files and checkpoints of hostile authors, made by code. `cases` lists them all."""

import os
import shutil
import struct
import zipfile
import zlib

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"

# --- pickles, opcode by opcode ---


def text(value):
    value = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(value)) + value


def integer(value):
    if -2**31 <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    length = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([length]) + value.to_bytes(length, "little", signed=True)


def sequence(*items):
    return b"(" + b"".join(items) + b"t"


def listed(*items):
    return b"](" + b"".join(items) + b"e"


def mapping(*pairs):
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def called(module, name, *arguments):
    return named(module, name) + sequence(*arguments) + b"R"


def instance(module, name, **fields):
    return named(module, name) + b")\x81" + mapping(*((text(key), value) for key, value in fields.items())) + b"b"


NONE, TRUE, FALSE, REAL = b"N", b"\x88", b"\x89", b"G" + struct.pack(">d", 1.5)


def storage_id(*parts):
    wanted = [text("storage"), named("torch", "FloatStorage"), text("0"), text("cpu"), integer(4)]
    return sequence(*(parts or wanted)) + b"Q"


def tensor_arguments(storage=None, offset=0, sizes=(4,), strides=(1,)):
    return [storage or storage_id(), integer(offset), sequence(*map(integer, sizes)), sequence(*map(integer, strides)), FALSE,
            named("collections", "OrderedDict") + b")R"]


def tensor(**options):
    return called("torch._utils", "_rebuild_tensor_v2", *tensor_arguments(**options))


def state(**values):
    return mapping(*((text(key), value) for key, value in values.items()))


def whole(body, protocol=2):
    return b"\x80" + bytes([protocol]) + body + b"."


# --- archives of torch.save ---


def write_archive(path, pickle, storages=None, version=b"3\n", folder="archive", more=()):
    with zipfile.ZipFile(path, "w") as archive:
        if pickle is not None:
            archive.writestr(f"{folder}/data.pkl", pickle)
        for key, content in (storages or {"0": struct.pack("<4f", 1, 2, 3, 4)}).items():
            archive.writestr(f"{folder}/data/{key}", content)
        if version is not None:
            archive.writestr(f"{folder}/version", version)
        for name, content in more:
            archive.writestr(name, content)


def of_pickle(body, protocol=2, **options):
    return lambda path: write_archive(path, whole(body, protocol), **options)


def with_bytes(change):
    """A sound archive, of which `change` makes other bytes."""
    def make(path):
        write_archive(path, whole(state(a=tensor())))
        path.write_bytes(change(path.read_bytes()))
    return make


def with_field(signature, offset, width, value):
    """The field of the first record with that signature."""
    def change(content):
        at = content.index(signature) + offset
        return content[:at] + (value & (1 << 8 * width) - 1).to_bytes(width, "little") + content[at + width:]
    return with_bytes(change)


# --- records of PyTorch and of Cairn ---


def size_of(*sizes):
    return called("torch", "Size", sequence(*map(integer, sizes)))


def properties(dtype=named("torch", "float32"), layout="torch.strided", memory_format=0):
    parts = sequence(dtype, called("torch.serialization", "_get_layout", text(layout)), FALSE,
                     called(METADATA, "_MEM_FORMAT_ENCODING", integer(memory_format)), FALSE)
    return named(METADATA, "TensorProperties") + b")\x81" + parts + b"b"


def chunk(offset=0, size=4):
    return instance(METADATA, "ChunkStorageMetadata", offsets=size_of(offset), sizes=size_of(size))


def record(path="__0_0.distcp", offset=0, length=600, size=4, chunks=None, entries=None, places=None, paths=None, transform=None,
           **options):
    chunks = listed(chunk()) if chunks is None else chunks
    described = instance(METADATA, "TensorStorageMetadata", properties=properties(**options), size=size_of(size), chunks=chunks)
    place = instance(FILESYSTEM, "_StorageInfo", relative_path=path if isinstance(path, bytes) else text(path),
                     offset=integer(offset), length=integer(length),
                     **({"transform_descriptors": listed(text(transform))} if transform else {}))
    index = instance(METADATA, "MetadataIndex", fqn=text("a"), offset=size_of(0), index=integer(0))
    return whole(instance(METADATA, "Metadata", state_dict_metadata=entries or mapping((text("a"), described)),
                          planner_data=paths or mapping((text("a"), sequence(text("a")))),
                          storage_data=places or mapping((index, place)), version=text("1.0.0")), 4)


def of_record(content=None, files=("__0_0.distcp",), **options):
    """A checkpoint with this record and data files that hold one small tensor."""
    def make(path):
        path.mkdir()
        (path / ".metadata").write_bytes(record(**options) if content is None else content)
        for name in files:
            write_archive(path / name, whole(tensor()))
    return make


def field(number, content):
    """A field of Protobuf with bytes, or with a number."""
    def varint(value):
        made = b""
        while value >= 0x80:
            made, value = made + bytes([value & 0x7f | 0x80]), value >> 7
        return made + bytes([value])
    if isinstance(content, int):
        return varint(number << 3) + varint(content & 2**64 - 1)
    return varint(number << 3 | 2) + varint(len(content)) + content


def without(section, numbers):
    """A section whose files lack the fields of these numbers."""
    def varint(content, at):
        value = shift = 0
        while True:
            value, shift, at = value | (content[at] & 0x7f) << shift, shift + 7, at + 1
            if content[at - 1] < 0x80:
                return value, at

    def parts(content):
        at = 0
        while at < len(content):
            begin = at
            tag, at = varint(content, at)
            length = 4 if tag & 7 == 5 else 8 if tag & 7 == 1 else None
            if length is None:
                length, at = varint(content, at)
            at += length if tag & 7 else 0
            yield tag >> 3, content[begin:at], content[at - length:at] if tag & 7 == 2 else b""

    made = b""
    for number, part, content in parts(section):
        made += field(11, b"".join(inner for name, inner, _ in parts(content) if name not in numbers)) if number == 11 else part
    return made


def resealed(content, section_offset=None, head_offset=None, version=2, tail=b""):
    """Cairn's record without its footer, and with one that fits."""
    content += tail + struct.pack("<QQI", section_offset, head_offset, version) + b"CairnRec"
    return content + struct.pack("<I", zlib.crc32(content))


def of_section(change):
    """A checkpoint of Cairn's, of whose section `change` makes another one."""
    def make(path, sound):
        shutil.copytree(sound, path)
        content = (path / ".metadata").read_bytes()
        offset, head = struct.unpack("<QQ", content[-32:-16])
        section = change(content[offset:-32])
        head -= max(0, len(content) - 32 - offset - len(section))
        (path / ".metadata").write_bytes(resealed(content[:offset] + section, offset, max(offset, head)))
    make.needs_sound = True
    return make


def of_copy(change):
    """A checkpoint of Cairn's that `change` changes in place."""
    def make(path, sound):
        shutil.copytree(sound, path)
        change(path, next(path.glob("*.distcp")))
    make.needs_sound = True
    return make


def of_trailer(body):
    def change(_, data):
        content = data.read_bytes()
        length = struct.unpack("<Q", content[-12:-4])[0]
        content = content[:len(content) - 28 - length] + body
        footer = b"CairnTrl" + struct.pack("<IIQ", 1, zlib.crc32(body), len(body))
        data.write_bytes(content + footer + struct.pack("<I", zlib.crc32(footer)))
    return of_copy(change)


def replaced(make_other):
    def change(_, data):
        data.unlink()
        make_other(data)
    return of_copy(change)


# --- the cases ---


def executing(marker):
    """Pickles that touch `marker` if anything in them is called."""
    command, code = f"touch {marker}", f"open({str(marker)!r}, 'w')"
    callees = [("posix", "popen", command), ("nt", "system", command), ("subprocess", "getoutput", command), ("pty", "spawn", command),
               ("builtins", "compile", code), ("timeit", "timeit", code), ("code", "interact", code), ("runpy", "_run_code", code),
               ("torch.hub", "load", code), ("torch", "load", str(marker)), ("torch.jit", "load", str(marker)),
               ("torch._utils", "_rebuild_wrapper_subclass", code), ("torch.storage", "_load_from_bytes", code),
               ("torch._tensor", "_rebuild_from_type_v2", code), ("torch.serialization", "load", str(marker)),
               ("numpy.core.multiarray", "_reconstruct", code), ("pickle", "loads", code), ("_pickle", "loads", code),
               ("importlib", "import_module", "antigravity"), ("functools", "partial", code), ("operator", "attrgetter", "system"),
               ("types", "FunctionType", code), ("codecs", "decode", code), ("ctypes", "CDLL", "libc.so.6"),
               ("pathlib", "Path.touch", str(marker)), ("shutil", "rmtree", str(marker.parent)), ("collections", "OrderedDict.fromkeys", code)]
    for module, name, argument in callees:
        yield f"calls {module}.{name}", of_pickle(state(a=called(module, name, text(argument))))
    system = ("os", "system")
    yield "calls by STACK_GLOBAL", of_pickle(state(a=text(system[0]) + text(system[1]) + b"\x93" + sequence(text(command)) + b"R"), 4)
    yield "calls by NEWOBJ_EX", of_pickle(state(a=named(*system) + sequence(text(command)) + b"}\x92"), 4)
    yield "calls by BUILD of an ordered dict", of_pickle(
        state(a=named("collections", "OrderedDict") + b")R" + mapping((text("__class__"), named(*system))) + b"b"))
    yield "calls what a call has made", of_pickle(state(a=called("builtins", "getattr", named("os", "path"), text("system")) + b")R"))
    yield "calls a tensor", of_pickle(state(a=tensor() + b")R"))
    yield "calls in a persistent id", of_pickle(state(a=storage_id(called(*system, text(command)))))
    yield "calls in a key", of_pickle(mapping((called(*system, text(command)), integer(1))))
    yield "calls what is then thrown away", of_pickle(called(*system, text(command)) + b"0" + state(a=tensor()))
    yield "calls in a record", of_record(record(paths=called(*system, text(command))))
    yield "calls for a dtype in a record", of_record(record(dtype=called(*system, text(command))))
    yield "calls for a path in a record", of_record(record(path=called("pathlib", "PosixPath", called(*system, text(command)))))


def malformed_tensors():
    wrong = {"None": NONE, "text": text("x"), "real": REAL, "list": b"]", "huge int": integer(2**62), "negative int": integer(-5)}
    for at, part in enumerate(("storage", "offset", "sizes", "strides", "gradient", "hooks")):
        for name, value in wrong.items():
            arguments = tensor_arguments()
            arguments[at] = value
            yield f"tensor whose {part} is {name}", of_pickle(state(a=called("torch._utils", "_rebuild_tensor_v2", *arguments)))
    parts = [text("storage"), named("torch", "FloatStorage"), text("0"), text("cpu"), integer(4)]
    for at, part in enumerate(("mark", "class", "key", "device", "count")):
        for name in ("None", "list", "negative int"):
            changed = list(parts)
            changed[at] = wrong[name]
            yield f"storage whose {part} is {name}", of_pickle(state(a=tensor(storage=storage_id(*changed))))
    for name, options in {
            "negative stride": {"strides": (-1,)}, "negative size": {"sizes": (-4,)}, "more strides than sizes": {"strides": (1, 1)},
            "offset behind the end": {"offset": 4}, "size beyond the end": {"sizes": (5,)}, "stride beyond the end": {"strides": (2,)},
            "a thousand dimensions": {"sizes": (1,) * 1000, "strides": (1,) * 1000},
            "a product of sizes that overflows": {"sizes": (2**32, 2**32), "strides": (0, 0)},
            "an offset that overflows": {"offset": 2**63 - 1}, "2^62 elements": {"sizes": (2**62,), "strides": (0,)},
            "2^63-1 elements": {"sizes": (2**63 - 1,), "strides": (0,)}, "2^50 elements": {"sizes": (2**50,), "strides": (0,)},
            "an empty tensor with a huge stride": {"sizes": (0, 4), "strides": (2**62, 1)}}.items():
        yield f"tensor with {name}", of_pickle(state(a=tensor(**options)))
    yield "tensor of a storage that is not there", of_pickle(state(a=tensor(storage=storage_id(*parts[:2], text("7"), *parts[3:]))))
    yield "tensor of the storage ../data.pkl", of_pickle(state(a=tensor(storage=storage_id(*parts[:2], text("../data.pkl"), *parts[3:]))))
    yield "storage in place of a tensor", of_pickle(state(a=storage_id()))
    for name in ("_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_meta_tensor_no_storage", "_rebuild_device_tensor_from_numpy",
                 "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_tensor", "_rebuild_tensor_v3", "_rebuild_nested_tensor"):
        yield f"torch._utils.{name}", of_pickle(state(a=called("torch._utils", name, *tensor_arguments())))


def odd_keys():
    for name, key in {"an escape sequence": "\x1b[2J\x1b]0;x\x07", "line feeds": "a\nb\n", "NUL": "a\0b", "a million characters": "k" * 10**6,
                      "reversed text": "\u202egnp.\u2069", "a lone surrogate": "\udcff", "safetensors' own name": "__metadata__",
                      "a path": "../../x", "dots": "..", "a format": "{0}%n%s", "nothing": ""}.items():
        yield f"key with {name}", of_pickle(mapping((text(key), tensor())))
    for name, key in {"None": NONE, "a real": REAL, "a tuple": sequence(text("a")), "a list": b"]", "a tensor": tensor(), "True": TRUE}.items():
        yield f"key that is {name}", of_pickle(mapping((key, integer(1)), (text("b"), tensor())))
    yield "keys that flatten to one name", of_pickle(mapping((text("a.b"), tensor()), (text("a"), state(b=tensor()))))
    yield "key set twice to two kinds", of_pickle(mapping((text("a"), tensor()), (text("a"), integer(1))))
    yield "ten thousand keys", of_pickle(mapping(*((text(f"k{i}"), integer(i)) for i in range(10_000))))
    yield "ten thousand views of one storage", of_pickle(
        mapping((text("t"), storage_id() + b"q\x00"), *((text(f"k{i}"), tensor(storage=b"h\x00")) for i in range(10_000))))
    for name, root in {"a tensor": tensor(), "an int": integer(1), "a tuple": sequence(state(a=tensor())), "a text": text("x")}.items():
        yield f"root that is {name}", of_pickle(root)


def lying_archives():
    local, central, end = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
    for record_name, signature, fields in (
            ("local", local, {"flags": (6, 2), "method": (8, 2), "crc": (14, 4), "size": (18, 4), "name length": (26, 2), "extra": (28, 2)}),
            ("central", central, {"flags": (8, 2), "method": (10, 2), "crc": (16, 4), "packed size": (20, 4), "size": (24, 4),
                                  "name length": (28, 2), "extra": (30, 2), "comment": (32, 2), "disk": (34, 2), "offset": (42, 4)}),
            ("end", end, {"disk": (4, 2), "entries": (8, 2), "all entries": (10, 2), "size": (12, 4), "offset": (16, 4), "comment": (20, 2)})):
        for name, (offset, width) in fields.items():
            for value in (-1, 1):
                yield f"archive whose {record_name} {name} is {value}", with_field(signature, offset, width, value)
    yield "archive behind other bytes", with_bytes(lambda content: b"MZ" + bytes(510) + content)
    yield "archive before other bytes", with_bytes(lambda content: content + b"#!/bin/sh\n")
    yield "archive twice", with_bytes(lambda content: content + content)
    yield "archive with an end in its comment", with_bytes(lambda content: content[:-2] + b"\x16\0" + content[-22:])
    sound = whole(state(a=tensor()))
    yield "archive without a pickle", lambda path: write_archive(path, None)
    yield "archive with two pickles", lambda path: write_archive(path, sound, more=[("other/data.pkl", sound), ("data.pkl", sound)])
    yield "archive of one absolute folder", lambda path: write_archive(path, sound, folder="/etc")
    yield "archive of the folder above", lambda path: write_archive(path, sound, folder="../..")
    yield "archive of no folder", lambda path: write_archive(path, sound, folder="")
    for version in (b"", b"0\n", b"-1", b"11", b"9" * 400, b"3\0"):
        yield f"archive of version {version[:9]!r}", lambda path, version=version: write_archive(path, sound, version=version)
    yield "archive with a module's code", lambda path: write_archive(path, sound, more=[("archive/constants.pkl", sound)])
    yield "archive with another byte order", lambda path: write_archive(path, sound, more=[("archive/byteorder", b"middle")])


def pytorch_records():
    for name in ("../x", "/etc/passwd", "", ".", "a//b", "x\0y", "\x1b[2J", "a" * 5000, ".metadata", "dir", "loop", "zero", "fifo"):
        def make(path, name=name):
            of_record(path=name)(path)
            (path / "dir").mkdir()
            (path / "loop").symlink_to("loop")
            (path / "zero").symlink_to("/dev/zero")
            os.mkfifo(path / "fifo")
        yield f"record that names the file {name[:20]!r}", make
    for name, options in {
            "a negative offset": {"offset": -1}, "a huge offset": {"offset": 2**62}, "a negative length": {"length": -1},
            "a huge length": {"length": 2**63 - 1}, "no length": {"length": 0}, "a size of 2^62": {"size": 2**62},
            "a negative size": {"size": -4}, "no chunks": {"chunks": listed()}, "a chunk outside": {"chunks": listed(chunk(2, 4))},
            "chunks that overlap": {"chunks": listed(chunk(), chunk())}, "a negative chunk": {"chunks": listed(chunk(-1, 4))},
            "chunks that are a dict": {"chunks": b"}"}, "another layout": {"layout": "torch.sparse_coo"},
            "a memory format of 9": {"memory_format": 9}, "a dtype that is a class": {"dtype": named("torch", "Tensor")},
            "a dtype that is a text": {"dtype": text("float32")}, "entries that are a list": {"entries": b"]"},
            "places that are a list": {"places": b"]"}, "paths that are a list": {"paths": b"]"},
            "a path of a hundred thousand steps": {"paths": mapping((text("a"), sequence(*[b"K\1"] * 100_000)))},
            "a path to another name": {"paths": mapping((text("a"), sequence(text("b"), text("c"))))}}.items():
        yield f"record with {name}", of_record(**options)
    yield "record that is empty", of_record(content=b"")
    yield "record that is a megabyte of lists", of_record(content=b"]" * 2**20)
    yield "record that is a megabyte of marks", of_record(content=b"(" * 2**20)
    yield "record that is followed by another", of_record(content=record() + record())
    yield "record that claims to be Cairn's", of_record(content=record().replace(text("1.0.0"), text("1.0.0")) + b"CairnRec\0\0\0\0")


def cairn_records():
    for name, tail in {
            "a file without length": field(11, field(1, b"x")), "a file with a length alone": field(11, field(1, b"x") + field(2, 5)),
            "a file without a name": field(11, field(2, 5)), "a file of a name above": field(11, field(1, b"../x") + field(2, 5)),
            "a trailer longer than its file": field(11, field(1, b"x") + field(2, 5) + b"\x1d\0\0\0\0" + field(4, 6)),
            "one kind too many": field(2, 1), "an unknown kind": field(2, 77), "sizes without tensors": field(7, 2**63 - 1),
            "a negative size": field(7, -1), "2^32 chunks": field(8, 2**32 - 1), "extents without chunks": field(9, 5),
            "locations without chunks": field(10, field(1, 0)), "a location in no file": field(10, field(1, 2**31)),
            "an offset of 2^64-1": field(10, field(2, 2**64 - 1)), "names that are longer than their text": field(1, field(2, 2**31)),
            "properties of no dtype": field(4, field(1, 99)), "a path of 2^31 steps": field(12, field(1, 0) + field(2, 2**31)),
            "a commit of 2^32 ranks": field(16, field(3, 2**32 - 1)), "another sequence": field(16, field(1, 2**64 - 1)),
            "a save id above": field(14, b"../../x"), "another save id": field(14, b"cairn-" + b"0" * 32 + b"-00000000-1"),
            "a wire type of 7": b"\x0f", "a group that never ends": b"\x0b" * 5000, "a length beyond the end": b"\x5a\xff\xff\xff\xff\x07"}.items():
        yield f"section with {name}", of_section(lambda section, tail=tail: section + tail)
    for name, numbers in {"length": {2}, "checksum": {3}, "trailer": {4}, "length and trailer": {2, 4}}.items():
        yield f"section whose files lack {name}", of_section(lambda section, numbers=numbers: without(section, numbers))
    yield "section of nothing", of_section(lambda section: b"")
    yield "section twice", of_section(lambda section: section + section)
    for name, options in {"an offset behind the end": (2**63, 1), "a section over the footer": (0, 2**64 - 1), "a section of the pickle": (0, 8)}.items():
        def change(path, _, options=options):
            file = path / ".metadata"
            file.write_bytes(resealed(file.read_bytes()[:-32], *options))
        yield f"footer with {name}", of_copy(change)
    for name, body in {"nothing": b"", "noise": bytes(range(256)) * 4, "a block size of 0": field(4, 0), "a block size of 2^31": field(4, 2**31),
                       "2^63 bytes of content": field(3, 2**63), "an item outside": field(6, field(7, 2**63) + field(8, 2**63))}.items():
        yield f"trailer of {name}", of_trailer(body)
    yield "data file that is a directory", replaced(lambda data: data.mkdir())
    yield "data file that is a link to itself", replaced(lambda data: data.symlink_to(data.name))
    yield "data file that is a link to a device", replaced(lambda data: data.symlink_to("/dev/zero"))
    yield "data file that is a pipe", replaced(os.mkfifo)
    yield "data file that is the record", of_copy(lambda path, data: shutil.copy(path / ".metadata", data))

    def sparse(_, data):
        with open(data, "r+b") as file:
            file.truncate(2**40)
    yield "data file of a terabyte of nothing", of_copy(sparse)


def cases(marker):
    """Pairs of a name and a function that makes the file or directory at a path, from a sound checkpoint of Cairn's if it `needs_sound`."""
    made = [*executing(marker), *malformed_tensors(), *odd_keys(), *lying_archives(), *pytorch_records(), *cairn_records()]
    assert len({name for name, _ in made}) == len(made), "each case has a name of its own"
    return made
