#!/usr/bin/env python3
"""Our files against the Python packages that others read and write theirs with, in both directions, and our expansion
of block types against ggml's own decoders. Needs safetensors, gguf and numpy: with_packages.sh sees to them.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from probe import CheckpointTest, main, make_checkpoints

import ggml_blocks
import gguf
import numpy
import safetensors
import safetensors.numpy
from gguf import GGMLQuantizationType as Type
from tensor_files import Tensor

# Our dtype names -> the package's when it writes.
PACKAGE_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
                  "F8_E8M0": "float8_e8m0fnu", "I8": "int8", "I64": "int64"}  # fmt: skip
# Type -> offsets of the fp16 numbers in a block.
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": ()}  # fmt: skip


def save_with_package(tensors, path):
    kept = {name: numpy.frombuffer(tensor.data, numpy.uint8) for name, tensor in tensors.items()}
    specs = {name: safetensors.TensorSpec(dtype=PACKAGE_DTYPES[tensor.dtype], shape=tensor.shape,
                                          data_ptr=kept[name].ctypes.data, data_len=len(tensor.data))
             for name, tensor in tensors.items()}  # fmt: skip
    safetensors.serialize_file(specs, path, metadata={"format": "np"})


def random_blocks(kind, rows, cols, seed):
    """Any bytes are valid blocks but for their scales, which get a size that keeps sums finite."""
    random = numpy.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    data = random.integers(0, 256, (rows * cols // block, size), numpy.uint8)
    for offset in HALVES[kind]:
        halves = (random.uniform(0.5, 1, len(data)) / 64 / (16 if "K" in kind else 1)).astype("<f2")
        data[:, offset : offset + 2] = halves.view(numpy.uint8).reshape(-1, 2)
    if kind == "MXFP4":
        data[:, 0] = random.integers(117, 126, len(data))
    return data.reshape(rows, cols // block * size)


def bf16_tensor(values, shape):
    """ggml's values, float32, as BF16: numpy does the rounding here, so that ours is not held against itself."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return Tensor("BF16", shape, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes())


class PackagesTest(CheckpointTest):
    # ---- Our files, their readers -----------------------------------------------------------------------------------

    def test_safetensors_reads_ours(self):
        for name in ("a_golden_stable", "e_fp8_weights", "g_draft_layer"):
            case = self.case(name)
            release = make_checkpoints.make_release(case, 4, scatter=True)
            folder = release.save(self.folder / name)
            flat = make_checkpoints.make_flat(case)
            pairs = [(folder / release.shard_name(k), shard) for k, shard in enumerate(release.shards)]
            for path, tensors in [*pairs, (flat.save(self.folder / f"{name}.flat"), flat.tensors)]:
                with self.subTest(path=path.name, name=name):
                    read = dict(safetensors.deserialize(path.read_bytes()))
                    self.assertEqual(set(read), set(tensors))
                    for key, tensor in tensors.items():
                        self.assertEqual((read[key]["dtype"], read[key]["shape"]), (tensor.dtype, tensor.shape))
                        self.assertEqual(bytes(read[key]["data"]), tensor.data)

    def test_gguf_reads_ours(self):
        case = self.case("f_q2k_weights")
        types = {"indexer.wq_b.weight": "Q8_0", "compressor": "Q4_K", "indexer.wk.weight": "MXFP4",
                 "indexer.weights_proj.weight": "F16"}  # fmt: skip
        ours = make_checkpoints.make_gguf(case, types)
        for alignment in (32, 64):
            with self.subTest(alignment=alignment):
                reader = gguf.GGUFReader(ours.save(self.folder / f"one{alignment}.gguf", alignment=alignment))
                self.assertEqual(reader.alignment, alignment)
                self.check_read(reader.tensors, ours.tensors)
                for key, (kind, value) in ours.metadata.items():
                    read = reader.get_field(key).contents()
                    if kind.endswith("f32"):
                        value = numpy.float32(value).tolist()
                    self.assertEqual(read, value, key)
        first = ours.save(self.folder / "split.gguf", n_shards=3)
        readers = [gguf.GGUFReader(str(first).replace("-00001-", f"-{k + 1:05}-")) for k in range(3)]
        self.check_read([tensor for reader in readers for tensor in reader.tensors], ours.tensors)
        for k, reader in enumerate(readers):
            self.assertEqual(reader.get_field("split.no").contents(), k)
            self.assertEqual(reader.get_field("split.count").contents(), 3)
            self.assertEqual(reader.get_field("split.tensors.count").contents(), len(ours.tensors))

    def check_read(self, read, ours):
        self.assertEqual([tensor.name for tensor in read], list(ours))
        for tensor in read:
            own = ours[tensor.name]
            self.assertEqual(tensor.tensor_type.name, own.dtype)
            self.assertEqual(list(reversed([int(n) for n in tensor.shape])), own.shape)
            self.assertEqual(tensor.data.tobytes(), own.data)

    # ---- Their files, our loader ------------------------------------------------------------------------------------

    def test_we_read_what_safetensors_writes(self):
        for name in ("a_golden_stable", "e_fp8_weights", "g_draft_layer"):
            with self.subTest(name=name):
                case = self.case(name)
                release = make_checkpoints.make_release(case)
                ours = release.save(self.folder / f"{name}.ours")
                theirs = release.save(self.folder / f"{name}.theirs")
                for k, shard in enumerate(release.shards):
                    save_with_package(shard, theirs / release.shard_name(k))
                    self.assertNotEqual((theirs / release.shard_name(k)).read_bytes(),
                                        (ours / release.shard_name(k)).read_bytes())  # fmt: skip
                self.check_same([ours, theirs])
                self.check_same([ours, theirs], "--map")

    def test_we_read_what_numpy_writes(self):
        """save_file knows numpy's own dtypes: everything as F32, which holds every BF16 value. Only on the reference
        backend do both have the same sums."""
        case = self.case()
        ours = make_checkpoints.make_release(case).save(self.folder / "ours")
        theirs = make_checkpoints.make_flat(case).save(self.folder / "theirs")
        arrays = {name: numpy.array(ggml_blocks.decode(t.dtype, t.data), numpy.float32).reshape(t.shape)
                  for name, t in case.weights.items()}  # fmt: skip
        safetensors.numpy.save_file(arrays, theirs)
        self.check_same([ours, theirs], "--backend", "reference")

    def write_gguf(self, path, ours, convert=lambda name, tensor: (tensor.dtype, tensor.data), **options):
        """Our GGUF's contents by the package's writer; returns the path of the first file."""
        writer = gguf.GGUFWriter(path, "deepseek41", **options)
        add = {"u32": writer.add_uint32, "i32": writer.add_int32, "f32": writer.add_float32, "bool": writer.add_bool,
               "string": writer.add_string}  # fmt: skip
        for key, (kind, value) in ours.metadata.items():
            if key != "general.architecture":  # the writer's own
                (writer.add_array if kind.startswith("[]") else add[kind])(key, value)
        for name, tensor in ours.tensors.items():
            kind, data = convert(name, tensor)
            array = numpy.frombuffer(data, numpy.uint8)
            shape = gguf.quant_shape_to_byte_shape(tensor.shape, Type[kind])
            if kind == "F32":
                writer.add_tensor(name, array.view(numpy.float32).reshape(tensor.shape))
            elif kind == "F16":
                writer.add_tensor(name, array.view(numpy.float16).reshape(tensor.shape))
            else:
                writer.add_tensor(name, array.reshape(shape), raw_dtype=Type[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if path.exists() else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))

    def test_we_read_what_gguf_writes(self):
        for name in ("a_golden_stable", "f_q2k_weights", "g_draft_layer"):
            for role_keys in ("attention_ids", "ids", "none"):
                with self.subTest(name=name, role_keys=role_keys):
                    case = self.case(name)
                    ours = make_checkpoints.make_gguf(case, {"norms": "F16"} if name[0] == "f" else None,
                                                      role_keys=role_keys)  # fmt: skip
                    path = ours.save(self.folder / "ours.gguf")
                    theirs = self.write_gguf(self.folder / "theirs.gguf", ours)
                    self.check_same([path, theirs])
                    self.check_same([path, theirs], "--map")

    def test_we_read_what_gguf_splits(self):
        case = self.case("f_q2k_weights")
        ours = make_checkpoints.make_gguf(case)
        path = ours.save(self.folder / "ours.gguf")
        for options in ({"split_max_tensors": 20}, {"split_max_size": 600000},
                        {"split_max_tensors": 30, "small_first_shard": True}):  # fmt: skip
            with self.subTest(options=options):
                stem = "theirs" + str(len(options)) + next(iter(options))
                first = self.write_gguf(self.folder / f"{stem}.gguf", ours, **options)
                self.assertIn("-00001-of-", first.name)
                shards = sorted(self.folder.glob(f"{stem}-*.gguf"))
                self.check_same([path, *shards])

    def expected(self, case, name, kind, values, shape):
        """What a block type becomes: BF16, or F32 in compressors of ratio > 1; Q2_K stands for its exact values."""
        compressor = "attn_compressor_kv" in name or "attn_compressor_gate" in name
        wide = compressor and case.config["compress_ratios"][int(name.split(".")[1])] > 1
        if wide or kind == "Q2_K":
            return Tensor("F32", shape, numpy.ascontiguousarray(values, "<f4").tobytes())
        return bf16_tensor(values, shape)

    # ---- Block types ------------------------------------------------------------------------------------------------

    def test_what_gguf_quantises(self):
        """Real weights by the package's quantisers; against it stands a file of the package's decoded values."""
        case = self.case("f_q2k_weights")
        for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "BF16", "F16"):
            with self.subTest(kind=kind):
                blocks, plain = {}, {}
                plain_gguf, blocks_gguf = make_checkpoints.make_gguf(case), make_checkpoints.make_gguf(case)
                for name in case.weights:
                    if not name.endswith((".wq_a.weight", ".wkv.weight", ".indexer.wq_b.weight", ".wo_b.weight")):
                        continue
                    _, layer, _, rest = name.split(".", 3)
                    key = f"blk.{layer}.{make_checkpoints.GGUF_NAMES[rest][0]}"
                    shape = case.weights[name].shape
                    values = numpy.array(make_checkpoints.values_of(case, name), numpy.float32).reshape(shape)
                    data = gguf.quants.quantize(values, Type[kind])
                    blocks[key] = Tensor(kind, shape, data.tobytes())
                    plain[key] = self.expected(case, key, kind, gguf.quants.dequantize(data, Type[kind]), shape)
                blocks_gguf.tensors.update(blocks)
                plain_gguf.tensors.update(plain)
                self.check_same([plain_gguf.save(self.folder / "plain.gguf"),
                                 self.write_gguf(self.folder / f"{kind}.gguf", blocks_gguf)])  # fmt: skip

    def test_any_blocks_expand_as_ggml_decodes_them(self):
        case = self.case("f_q2k_weights")
        for number, kind in enumerate(HALVES):
            with self.subTest(kind=kind):
                blocks, plain = make_checkpoints.make_gguf(case), make_checkpoints.make_gguf(case)
                for i, (name, tensor) in enumerate(list(blocks.tensors.items())):
                    matrix = len(tensor.shape) == 2 and ("attn_" in name or "indexer" in name)
                    if not matrix or tensor.shape[1] % 256 or name.startswith("token"):
                        continue
                    data = random_blocks(kind, *tensor.shape, seed=1000 * number + i)
                    values = gguf.quants.dequantize(data, Type[kind])
                    self.assertTrue(numpy.isfinite(values).all() and values.any())
                    blocks.tensors[name] = Tensor(Type[kind].value, tensor.shape, data.tobytes())
                    plain.tensors[name] = self.expected(case, name, kind, values, tensor.shape)
                # Q2_K stays as it is; with plain activations it stands for its exact values.
                options = ["--plain-q2k"] if kind == "Q2_K" else []
                self.check_same([plain.save(self.folder / "plain.gguf"), blocks.save(self.folder / "blocks.gguf")],
                                *options)  # fmt: skip

    def test_our_decoders_and_quantisers_are_ggmls(self):
        """What expansion_test.py, which has no package, holds the library against."""
        case = self.case("f_q2k_weights")
        values = make_checkpoints.values_of(case, "layers.0.attn.wq_b.weight")[: 4 * 768]
        for kind in ("F16", "BF16", "Q8_0", "Q4_K", "MXFP4"):
            with self.subTest(kind=kind):
                data = ggml_blocks.encode(kind, values)
                self.assertEqual(gguf.GGML_QUANT_SIZES[Type[kind]], ggml_blocks.TYPES[kind][1:])
                theirs = gguf.quants.dequantize(numpy.frombuffer(data, numpy.uint8), Type[kind])
                if kind == "F16":
                    theirs = numpy.frombuffer(data, "<f2").astype(numpy.float32)
                self.assertEqual(ggml_blocks.decode(kind, data).tobytes(), theirs.astype("<f4").tobytes())
                error = numpy.abs(theirs - numpy.array(values)).max() / numpy.abs(values).max()
                self.assertLess(error, {"MXFP4": 0.3, "Q4_K": 0.1}.get(kind, 0.01))
        for kind in ("Q8_0", "Q2_K", "Q4_K", "MXFP4"):
            with self.subTest(kind=kind, random=True):
                data = random_blocks(kind, 16, 512, seed=5)
                theirs = gguf.quants.dequantize(data, Type[kind]).astype("<f4").tobytes()
                self.assertEqual(ggml_blocks.decode(kind, data.tobytes()).tobytes(), theirs)


if __name__ == "__main__":
    main()
