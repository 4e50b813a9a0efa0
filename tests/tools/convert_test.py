#!/usr/bin/env python3
"""`cairn convert` from outside. Started as cairn_command.py says."""

import fcntl
import json
import math
import os
import pathlib
import pickletools
import random
import resource
import shutil
import struct
import zipfile
import zlib

import hostile_files
import torch_file
from cairn_command import cairn, Command, FINE, FIXTURES, FOUND_BAD, read_safetensors, run_tests, WEIGHT, WRONG_USE


def rename_in_record(path, name, other):
    """As one may find in a record of PyTorch's that somebody else made. Without frames, which tell lengths and need not be."""
    content, made = path.read_bytes(), b""
    operations = [(position, opcode, argument) for opcode, argument, position in pickletools.genops(content)]
    for (position, opcode, argument), (stop, _, _) in zip(operations, operations[1:] + [(len(content), None, None)]):
        if opcode.name == "SHORT_BINUNICODE" and argument == name:
            made += b"\x8c" + bytes([len(other)]) + other.encode()
        elif opcode.name != "FRAME":
            made += content[position:stop]
    path.write_bytes(made)


# Field 16 of the section, `commit`, of which field 3 is the world size; decoders merge what comes twice.
COMMIT_OF_70000_RANKS = b"\x82\x01\x04" + b"\x18\xf0\xa2\x04"


def add_to_section(path, fields):
    """To that of a record of Cairn's, as storage/FORMAT.md describes it."""
    record, footer = path.read_bytes()[:-32] + fields, path.read_bytes()[-32:]
    record += footer[:28]
    path.write_bytes(record + struct.pack("<I", zlib.crc32(record)))


class Convert(Command):
    def convert(self, source, *options, code=FINE):
        target = self.root / "out.safetensors"
        done = cairn("convert", source, target, "--to", "safetensors", *options)
        self.assertEqual(done.returncode, code, done.stderr)
        leftovers = [path.name for path in self.root.iterdir() if "partial" in path.name]
        self.assertEqual(leftovers, [])
        return target, done

    def test_pytorch_checkpoints_give_the_tensors_that_pytorch_gives(self):
        for name in ("single", "threads", "fsdp_even", "fsdp_uneven", "hsdp_2x2", "nested"):
            target, _ = self.convert(FIXTURES / name, "--force", "--skip-unsupported")
            expected, _, _ = read_safetensors(FIXTURES / name / "expected.safetensors")
            found = read_safetensors(target)[0]
            self.assertEqual({key: found[key] for key in found if key != "complex"}, expected, name)  # PyTorch left it out

    def test_a_checkpoint_of_ours(self):
        target, done = self.convert(self.checkpoint(), "--skip-unsupported")
        tensors, metadata, order = read_safetensors(target)
        self.assertEqual(struct.unpack("<Q", target.read_bytes()[:8])[0] % 8, 0, "the header is padded")
        self.assertEqual(tensors["model.weight"], ("F32", [3, 4], WEIGHT))
        self.assertEqual(tensors["model.count"], ("I64", [], struct.pack("<q", 41)))
        self.assertEqual(tensors["model.flags"], ("BOOL", [3], b"\1\0\1"))
        self.assertEqual(tensors["model.empty"], ("F32", [0, 4], b""))
        self.assertEqual(tensors["model.transposed"], ("F64", [3, 2], struct.pack("<6d", 0, 3, 1, 4, 2, 5)))
        self.assertEqual((metadata["format"], metadata["step"]), ("pt", "7"))
        sizes = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "BOOL": 1}
        ranks = [(-sizes[tensors[name][0]], name) for name in order]
        self.assertEqual(ranks, sorted(ranks), "by falling alignment, then by name")
        self.assertIn("step", done.stderr, "what is no tensor is named, not silently dropped")

    def test_an_existing_file_is_kept_unless_forced(self):
        source = self.checkpoint()
        (self.root / "out.safetensors").write_text("precious")
        target, done = self.convert(source, code=WRONG_USE)
        self.assertIn("--force", done.stderr)
        self.assertEqual(target.read_text(), "precious")
        self.convert(source, "--force", "--skip-unsupported")
        self.assertIn("model.weight", read_safetensors(target)[0])

    def test_values_that_are_left_out_unasked_are_a_fault(self):
        source = self.checkpoint()
        target, done = self.convert(source, code=FOUND_BAD)
        self.assertIn("--skip-unsupported", done.stderr)
        self.assertIn("model.weight", read_safetensors(target)[0], "all tensors are there")
        _, done = self.convert(source, "--force", "--select", "model.weight")
        self.assertEqual(done.stderr, "")

    def test_what_the_format_cannot_hold_is_refused_by_name(self):
        source = self.root / "a.pt"
        torch_file.save(source, {"complex": torch_file.Tensor("ComplexDouble", []), "known": torch_file.Tensor("Float", [1, 2])})
        target, done = self.convert(source, code=FOUND_BAD)
        self.assertIn("the format has no type complex128", done.stderr)
        self.assertFalse(target.exists())
        target, done = self.convert(source, "--skip-unsupported")
        self.assertIn("complex", done.stderr)
        self.assertEqual(list(read_safetensors(target)[0]), ["known"])

    def test_damaged_data_gives_no_file(self):
        source = self.fixture("single")
        data = source / "__0_0.distcp"
        data.write_bytes(data.read_bytes()[:-400])
        target, _ = self.convert(source, code=FOUND_BAD)
        self.assertFalse(target.exists())

    def test_the_destination_must_be_a_file_in_an_existing_directory(self):
        source = self.checkpoint()
        self.fails(WRONG_USE, "convert", source, self.root / "no" / "out", "--to", "safetensors", text="no directory")
        self.fails(WRONG_USE, "convert", source, self.root, "--to", "safetensors", "--force", text="directory")
        self.fails(WRONG_USE, "convert", source, "mem://x/out", "--to", "safetensors", text="URL")
        self.fails(WRONG_USE, "convert", source, "", "--to", "safetensors", text="empty")

    def test_force_replaces_files_only(self):
        source = self.checkpoint()
        pipe = self.root / "pipe"
        os.mkfifo(pipe)
        self.fails(WRONG_USE, "convert", source, pipe, "--to", "safetensors", "--force", text="no regular file")
        self.assertTrue(pipe.is_fifo())
        self.assertEqual([path.name for path in self.root.iterdir() if "partial" in path.name], [])

    def test_a_file_that_may_not_grow_so_large_leaves_nothing(self):
        done = cairn("convert", self.checkpoint(), self.root / "out", "--to", "safetensors",
                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)))
        self.assertEqual(done.returncode, FOUND_BAD, done.stderr)
        self.assertIn("ulimit -f", done.stderr)
        self.assertEqual([path.name for path in self.root.iterdir()], ["step_7"])


class ConvertTo(Command):
    """Other formats than safetensors, and what is changed on the way."""

    def convert(self, source, name, *options, code=FINE, **how):
        done = cairn("convert", source, self.root / name, *options, **how)
        self.assertEqual(done.returncode, code, done.stderr)
        return self.root / name, done

    def same(self, a, b, *options):
        done = cairn("diff", a, b, *options)
        self.assertEqual(done.returncode, FINE, done.stdout + done.stderr)

    def keys(self, path):
        return {entry["key"]: entry for entry in json.loads(cairn("inspect", path, "--json").stdout)["keys"]}

    def test_a_file_for_torch_load(self):
        source = self.checkpoint("--complex")
        file, _ = self.convert(source, "a.pt", "--to", "torch")
        self.same(source, file)
        with zipfile.ZipFile(file) as archive:
            self.assertIsNone(archive.testzip())
            pickle = archive.read("archive/data.pkl")
        names = {argument for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"}
        self.assertTrue(names <= {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"} | {
            name for name in names if name.startswith("torch ") and name.endswith("Storage")}, "what weights_only refuses")

    def test_a_file_of_torch_save_comes_back_as_a_checkpoint_of_any_layout(self):
        source = self.checkpoint()
        file, _ = self.convert(source, "a.pt", "--to", "torch")
        for world in (1, 3):
            target, _ = self.convert(file, f"over_{world}", "--to", "dcp", "--world", world)
            self.damaged(FINE, target)
            self.same(source, target)
            self.assertEqual(json.loads(cairn("inspect", target, "--json").stdout)["world_size"], world)
            self.assertEqual(len(self.keys(target)["large"]["chunks"]), world)
        paths = {key: entry["path"] for key, entry in self.keys(target).items()}
        self.assertEqual(paths, {key: entry["path"] for key, entry in self.keys(source).items()})

    def test_pytorchs_checkpoints_keep_their_layout_unless_told(self):
        for name in ("fsdp_uneven", "hsdp_2x2", "nested"):
            target, _ = self.convert(FIXTURES / name, name, "--to", "dcp", "--memory", "200")
            self.same(FIXTURES / name, target)
            self.damaged(FINE, target)
            told, before = (json.loads(cairn("inspect", path, "--json").stdout) for path in (target, FIXTURES / name))
            self.assertEqual([share["rank"] for share in told["ranks"]], [share["rank"] for share in before["ranks"]])
            self.convert(FIXTURES / name, name + ".pt", "--to", "torch", "--memory", "200")
            self.same(FIXTURES / name, self.root / (name + ".pt"), "--memory", "1000")

    def test_keys_are_chosen_and_renamed(self):
        source = self.checkpoint()
        options = ("--select", "model.*", "--select", "step", "--exclude", "*flags", "--rename", r"^model\.(w.*|bias)$=net.first.\1",
                   "--rename", "^model=rest")
        target, _ = self.convert(source, "chosen", "--to", "dcp", *options)
        keys = self.keys(target)
        self.assertEqual(list(keys), ["net.first.weight", "net.first.bias", "rest.count", "rest.transposed", "rest.empty", "step"])
        self.assertEqual(keys["net.first.weight"]["path"], ["net.first.weight"])
        nested, _ = self.convert(source, "nested", "--to", "dcp", "--rename", "weight=inner.weight")
        self.assertEqual(self.keys(nested)["model.inner.weight"]["path"], ["model", "inner.weight"])
        file, _ = self.convert(source, "chosen.pt", "--to", "torch", *options)
        self.same(target, file)
        done = cairn("convert", *options, source, self.root / "last", "--to", "dcp")
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.same(target, self.root / "last")

    def test_two_keys_must_not_become_one(self):
        target, done = self.convert(self.checkpoint(), "a.pt", "--to", "torch", "--rename", "weight=bias", code=WRONG_USE)
        self.assertIn('"model.weight" and "model.bias" would both become "model.bias"', done.stderr)
        self.assertFalse(target.exists())

    def test_a_cast_is_for_tensors_of_floating_point(self):
        source = self.checkpoint()
        target, _ = self.convert(source, "cast", "--to", "dcp", "--cast", "bfloat16")
        self.assertEqual({key: entry.get("dtype") for key, entry in self.keys(target).items()},
                         {"model.weight": "bfloat16", "model.bias": "bfloat16", "model.flags": "bool", "model.count": "int64",
                          "model.transposed": "bfloat16", "model.empty": "bfloat16", "large": "int32", "step": None, "name": None})
        told = json.loads(cairn("diff", source, target, "--json").stdout)
        self.assertEqual({entry["what"] for entry in told["differences"]}, {"dtype"}, "small whole numbers stay what they are")

    def test_wrong_use(self):
        source = self.checkpoint()
        for options, text in ((["--to", "torch", "--world", "2"], "--world is for"), (["--to", "dcp", "--cast", "int8"], "floating"),
                              (["--to", "dcp", "--rename", "abc"], "REGEX=REPL"), (["--to", "dcp", "--rename", "(=x"], "--rename"),
                              (["--to", "dcp", "--select", "x*"], "no key")):
            self.fails(WRONG_USE, "convert", source, self.root / "out", *options, text=text)
            self.assertFalse((self.root / "out").exists())
        self.fails(WRONG_USE, "convert", source, self.root / "no" / "out", "--to", "dcp", text="no directory")
        (self.root / "file").write_text("precious")
        self.fails(WRONG_USE, "convert", source, self.root / "file", "--to", "dcp", "--force", text="no directory")
        self.fails(WRONG_USE, "convert", source, source, "--to", "dcp", text="--force")
        self.fails(FOUND_BAD, "convert", self.root / "file", self.root / "out", "--to", "dcp", text="file")
        self.assertFalse((self.root / "out").exists())

    def test_force_replaces_a_checkpoint(self):
        source, other = self.checkpoint(), self.checkpoint("--step", "9", name="other")
        self.convert(source, "other", "--to", "dcp", "--force")
        self.same(source, other)

    def test_damaged_data_gives_nothing(self):
        source = self.fixture("single")
        data = source / "__0_0.distcp"
        data.write_bytes(data.read_bytes()[:-400])
        for name, format in (("a.pt", "torch"), ("a", "dcp")):
            self.convert(source, name, "--to", format, code=FOUND_BAD)
        self.assertEqual([path.name for path in self.root.iterdir()], ["single"])

    def test_damaged_elements_get_no_new_checksums(self):
        def numbers(negated=False):
            return torch_file.Tensor("Float", [1, 2, 3], negated)
        for where, value in (("alone", numbers()), ("in a tuple", (1, numbers())), ("in a dict in a tuple", ({"x": numbers()},)),
                             ("negated", numbers(negated=True)), ("negated, in a tuple", (numbers(negated=True),))):
            source = self.root / "a.pt"
            (begin,) = torch_file.save(source, {"value": value})
            for name, format in (("out.pt", "torch"), ("out", "dcp")):
                self.convert(source, name, "--to", format)
                self.same(source, self.root / name)
                (shutil.rmtree if format == "dcp" else os.remove)(self.root / name)
            content = bytearray(source.read_bytes())
            content[begin + 5] ^= 1
            source.write_bytes(content)
            for name, format in (("out.pt", "torch"), ("out", "dcp")):
                _, done = self.convert(source, name, "--to", format, code=FOUND_BAD)
                self.assertRegex(done.stderr, "checksum|CRC", where)
            self.assertEqual([path.name for path in self.root.iterdir()], ["a.pt"], where)

    def test_a_dtype_stays_a_dtype(self):
        source = self.root / "a.pt"
        names = ["bfloat16", "int8", "float32", "float8_e4m3fn"]
        alone, *rest = map(torch_file.DType, names)
        torch_file.save(source, {"alone": alone, "list": rest[:2], "pair": (1, rest[2])})
        self.convert(source, "a", "--to", "dcp")
        for place, name in ((source, "same.pt"), (self.root / "a", "back.pt")):
            for key, text in (("alone", "torch.bfloat16"), ("list", "[torch.int8, torch.float32]"), ("pair", "(1, torch.float8_e4m3fn)")):
                self.assertIn(text, cairn("cat", place, key).stdout)
            file, _ = self.convert(place, name, "--to", "torch")
            with zipfile.ZipFile(file) as archive:
                pickle = archive.read("archive/data.pkl")
            written = [argument for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"]
            self.assertEqual(written, ["torch " + name for name in names])
            self.same(source, file)

    def test_types_that_libtorch_lacks_are_moved_as_they_are(self):
        kinds = {"uint16": [0, 1, 65535], "uint32": [7, 2**32 - 1], "uint64": [2**63, 2**64 - 1], "float8_e4m3fn": [0x38, 0x7F],
                 "float8_e5m2": [0x7C, 0x80, 1], "float8_e4m3fnuz": [0x80], "float8_e5m2fnuz": [0x80, 2], "float8_e8m0fnu": [127, 0, 255],
                 "float4_e2m1fn_x2": [0x21, 0xF7]}
        tensors = {kind: torch_file.Tensor(kind, parts) for kind, parts in kinds.items()}
        tensors["trained"] = torch_file.Tensor("float8_e5m2", [3, 4], requires_grad=True)
        tensors["known"] = torch_file.Tensor("Float", [1, 2])
        source = self.root / "a.pt"
        torch_file.save(source, tensors)
        self.convert(source, "one", "--to", "dcp")
        self.convert(self.root / "one", "two", "--to", "dcp", "--world", "2", "--memory", "1")
        for place in (source, self.root / "one", self.root / "two"):
            if place.is_dir():
                self.damaged(FINE, place)
                keys = self.keys(place)
                self.assertEqual({key: entry["dtype"] for key, entry in keys.items()},
                                 {**{kind: kind for kind in kinds}, "trained": "float8_e5m2", "known": "float32"})
                self.assertEqual([key for key, entry in keys.items() if entry["requires_grad"]], ["trained"])
            self.same(source, place)
            file, _ = self.convert(place, place.name + ".pt", "--to", "torch", "--memory", "1")
            with zipfile.ZipFile(file) as archive:
                pickle = archive.read("archive/data.pkl")
                contents = [archive.read(f"archive/data/{number}") for number in range(len(tensors))]
            self.assertEqual(contents, [tensor.content for tensor in tensors.values()])
            names = [argument for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"]
            self.assertEqual([name for name in names if name in {"torch " + kind for kind in kinds}], ["torch " + kind for kind in kinds])
            self.assertEqual([opcode.name for opcode, _, _ in pickletools.genops(pickle)].count("NEWTRUE"), 1, "requires_grad")
            file, done = self.convert(place, "out.safetensors", "--to", "safetensors", "--skip-unsupported", "--force")
            found = read_safetensors(file)[0]
            self.assertEqual({name: found[name][0] for name in found},
                             {"uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
                              "float8_e8m0fnu": "F8_E8M0", "trained": "F8_E5M2", "known": "F32", "float8_e4m3fnuz": "F8_E4M3FNUZ",
                              "float8_e5m2fnuz": "F8_E5M2FNUZ", "float4_e2m1fn_x2": "F4"})
            self.assertEqual(found["float4_e2m1fn_x2"][1], [4])
            for name, (_, _, content) in found.items():
                self.assertEqual(content, tensors[name].content, name)
            self.same(place, file)

    def test_a_type_that_is_unknown_leaves_the_rest_readable(self):
        source = self.root / "a.pt"
        torch_file.save(source, {"new": torch_file.Tensor("float6_e3m2fn", [1, 2, 3]), "known": torch_file.Tensor("Float", [1, 2]),
                                 "name": torch_file.DType("float6_e3m2fn"), "pair": (torch_file.Tensor("float6_e3m2fn", [1]),)})
        self.assertIn("[1.0, 2.0]", cairn("cat", source, "known").stdout)
        self.assertIn("torch.float6_e3m2fn", cairn("cat", source, "name").stdout)
        self.assertRegex(cairn("inspect", source).stdout, r"known +float32 +\[2\]")
        for key in ("new", "pair"):
            self.fails(FOUND_BAD, "cat", source, key, text="float6_e3m2fn")
        for format in ("torch", "dcp", "safetensors"):
            target, done = self.convert(source, "out." + format, "--to", format, "--exclude", "pair", code=FOUND_BAD)
            self.assertIn("new: its type is torch.float6_e3m2fn, which this version of Cairn does not know", done.stderr)
            self.assertFalse(target.exists())
            self.convert(source, "out." + format, "--to", format, "--skip-unsupported")
        for name in ("out.torch", "out.dcp"):
            self.same(source, self.root / name, "--tensors", "known", "--tensors", "name")
        told = json.loads(cairn("diff", source, source, "--json").stdout)["differences"]
        self.assertEqual({entry["key"]: entry["what"] for entry in told}, {"new": "unreadable", "pair": "unreadable"})

    def test_safetensors_types_that_libtorch_lacks_are_named_and_copied(self):
        source = self.root / "a.safetensors"
        kinds = {"C64": ([2], 64, "complex64"), "F8_E4M3FNUZ": ([4], 8, "float8_e4m3fnuz"), "F8_E5M2FNUZ": ([4], 8, "float8_e5m2fnuz"),
                 "F4": ([3, 2], 4, "float4_e2m1fn_x2"), "F6_E2M3": ([4, 2], 6, "F6_E2M3"), "F6_E3M2": ([400], 6, "F6_E3M2"),
                 "NEW": ([7], 16, "NEW")}

        def write(path, kinds):
            header, content = {}, b""
            for kind, (shape, bits, *_) in kinds.items():
                data = random.Random(kind).randbytes(math.prod(shape) * bits // 8)
                header[kind] = {"dtype": kind, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
                content += data
            text = json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + content)

        write(source, kinds)
        keys = self.keys(source)
        self.assertEqual({kind: (keys[kind]["dtype"], keys[kind]["bytes"]) for kind in kinds},
                         {kind: (name, math.prod(shape) * bits // 8) for kind, (shape, bits, name) in kinds.items()})
        self.assertRegex(cairn("inspect", source).stdout, r"F6_E3M2 +F6_E3M2 +\[400\] +300 B")
        copy, _ = self.convert(source, "copy.safetensors", "--to", "safetensors", "--memory", "16")
        self.assertEqual(read_safetensors(copy)[0], read_safetensors(source)[0])
        self.same(source, copy)
        content = bytearray(copy.read_bytes())
        content[-1] ^= 1  # of NEW or of a type of 6 bits
        copy.write_bytes(content)
        (told,) = json.loads(cairn("diff", source, copy, "--json").stdout)["differences"]
        self.assertEqual((told["what"], told["different"]), ("values", 1))
        for format in ("torch", "dcp"):
            _, done = self.convert(source, "out", "--to", format, code=FOUND_BAD)
            for kind in ("F6_E2M3", "F6_E3M2", "NEW"):
                self.assertIn(f"{kind}: its type is {kind}, which this version of Cairn does not know", done.stderr)
            place, _ = self.convert(source, "out." + format, "--to", format, "--skip-unsupported")
            self.same(source, place, *(word for kind in ("C64", "F4", "F8_*") for word in ("--tensors", kind)))
        self.fails(FOUND_BAD, "cat", source, "F6_E2M3", text="F6_E2M3")
        write(source, {"F6_E2M3": ([3], 8)})
        self.fails(FOUND_BAD, "inspect", source, text="shape and place")

    def test_a_compressed_tensor_is_named_and_not_called_damaged(self):
        source = self.root / "compressed"
        hostile_files.of_record(transform="zstd")(source)
        for options in ((), ("--memory", "1")):
            _, done = self.convert(source, "out.pt", "--to", "torch", *options, code=FOUND_BAD)
            self.assertIn("the transform zstd, which Cairn cannot undo", done.stderr)
        self.convert(source, "left_out.pt", "--to", "torch", "--skip-unsupported")

    def test_tensors_that_pytorch_compressed_are_read_by_every_command(self):
        source = pathlib.Path(__file__).parent.parent / "data" / "pytorch-2.14" / "zstd"
        told = cairn("verify", source, check=False)
        if "CAIRN_WITH_ZSTD" in told.stdout + told.stderr:
            self.skipTest("this build has no compression")
        self.assertEqual(told.returncode, 0)
        keys = json.loads(cairn("inspect", source, "--json").stdout)["keys"]
        self.assertIn(["stream.zstd/1"], [chunk.get("transforms") for key in keys for chunk in key.get("chunks", [])])
        self.assertIn("2.5", cairn("cat", source, "scalar").stdout)
        for options in ((), ("--memory", "1MiB")):
            target, _ = self.convert(source, f"out{len(options)}.pt", "--to", "torch", *options)
            self.same(source, target)

    def test_a_cast_reads_numbers_that_libtorch_lacks(self):
        source = self.root / "a.pt"
        torch_file.save(source, {"w": torch_file.Tensor("float8_e4m3fn", [0x38, 0x7E, 0x81]), "n": torch_file.Tensor("uint16", [65535])})
        target, _ = self.convert(source, "out.safetensors", "--to", "safetensors", "--cast", "float32")
        self.assertEqual(read_safetensors(target)[0], {"w": ("F32", [3], struct.pack("<3f", 1, 448, -2**-9)),
                                                       "n": ("U16", [1], b"\xff\xff")})

    def test_ranks_of_which_there_cannot_be_so_many(self):
        for rank in (65536, 2**31 - 1):
            source = self.fixture("single")
            (source / "__0_0.distcp").rename(source / f"__{rank}_0.distcp")
            rename_in_record(source / ".metadata", "__0_0.distcp", f"__{rank}_0.distcp")
            target, _ = self.convert(source, "out", "--to", "dcp")
            self.same(source, target)
            self.assertEqual(json.loads(cairn("inspect", target, "--json").stdout)["world_size"], 1)
            shutil.rmtree(source)
            shutil.rmtree(target)
        source = self.checkpoint()
        add_to_section(source / ".metadata", COMMIT_OF_70000_RANKS)
        self.fails(FOUND_BAD, "convert", source, self.root / "out", "--to", "dcp", text="70000 ranks wrote it")
        self.assertFalse((self.root / "out").exists())
        target, _ = self.convert(source, "out", "--to", "dcp", "--world", "2")
        self.same(source, target)

    def test_only_one_converts_to_a_place(self):
        source = self.checkpoint()
        lock = self.root / "a.pt.cairn-partial"
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.fails(WRONG_USE, "convert", source, self.root / "a.pt", "--to", "torch", text="another conversion")


if __name__ == "__main__":
    run_tests()
