#!/usr/bin/env python3
"""GGUF files whose metadata, split or tensors are wrong: an error each, that names the key, the tensor or the shard."""
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from probe import CheckpointTest, main, make_checkpoints
from tensor_files import Tensor, gguf_bytes

# Everything of FORMATS' list that the attention layers need.
REQUIRED = ("block_count", "embedding_length", "attention.head_count", "attention.key_length", "rope.dimension_count",
            "attention.q_lora_rank", "attention.output_group_count", "attention.output_lora_rank",
            "attention.sliding_window", "attention.compress_ratios", "attention.indexer.head_count",
            "attention.indexer.key_length", "attention.indexer.top_k", "attention.layer_norm_rms_epsilon",
            "rope.freq_base", "attention.compress_rope_freq_base", "rope.scaling.factor",
            "rope.scaling.original_context_length", "rope.scaling.type", "context_length")  # fmt: skip


class GgufTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.gguf = make_checkpoints.make_gguf(self.case())
        self.path = self.folder / "model.gguf"

    def again(self):
        self.gguf = make_checkpoints.make_gguf(self.case())
        return self.gguf

    def save(self, **options):
        return self.gguf.save(self.path, **options)

    def set(self, key, kind, value):
        self.gguf.metadata["deepseek41." + key] = (kind, value)

    def put(self, name, tensor):
        self.gguf.tensors[name] = tensor

    def test_as_it_is(self):
        release = make_checkpoints.make_release(self.case()).save(self.folder / "release")
        answer = self.check_loads(self.save())
        self.assertEqual(answer["checkpoint"]["format"], "gguf")
        self.assertEqual(len(answer["checkpoint"]["tensors"]), len(self.case().weights))
        other = self.check_loads(release)
        self.assertEqual(answer["outputs"], other["outputs"])
        self.assertEqual(answer["config"], other["config"])

    # ---- Metadata ---------------------------------------------------------------------------------------------------

    def test_missing_keys(self):
        for key in REQUIRED:
            with self.subTest(key=key):
                self.again().metadata.pop("deepseek41." + key)
                self.check_refused(self.save(), "INVALID_FILE", key)

    def test_keys_that_may_be_missing(self):
        expected = self.check_loads(self.save())["outputs"]
        for key in ("attention.head_count_kv", "attention.value_length", "hash_layer_count", "expert_count",
                    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"):  # 32 and 1 where not given
            with self.subTest(key=key):
                self.again().metadata.pop("deepseek41." + key)
                self.assertEqual(self.check_loads(self.save())["outputs"], expected)

    def test_values_of_another_type(self):
        for key, kind, value in (("block_count", "string", "6"), ("block_count", "f32", 6.5),
                                 ("block_count", "[]u32", [6]), ("embedding_length", "bool", True),
                                 ("attention.compress_ratios", "string", "0,0,2,2,1,1"),
                                 ("attention.compress_ratios", "[]string", ["0"] * 6),
                                 ("attention.compress_ratios", "[]f32", [0.5] * 6),
                                 ("attention.kv_source_layer_ids", "string", "2,4"),
                                 ("attention.layer_norm_rms_epsilon", "string", "1e-20"),
                                 ("rope.freq_base", "[]f32", [1.0])):  # fmt: skip
            with self.subTest(key=key, kind=kind):
                self.again()
                self.set(key, kind, value)
                self.check_refused(self.save(), "INVALID_FILE", key)

    def test_values_out_of_range(self):
        for key, kind, value in (("block_count", "u32", 0), ("block_count", "u32", 0xFFFFFFFF),
                                 ("block_count", "u64", (1 << 63) + 6), ("embedding_length", "i32", -64),
                                 ("attention.head_count", "u32", 3), ("attention.compress_ratios", "[]i32", [-1] * 6),
                                 ("attention.compress_ratios", "[]u32", []),
                                 ("attention.compress_ratios", "[]u32", [0] * 100000),
                                 ("attention.layer_norm_rms_epsilon", "f32", float("nan")),
                                 ("rope.freq_base", "f32", float("inf")), ("attention.head_count_kv", "u32", 4),
                                 ("attention.value_length", "u32", 64), ("rope.scaling.type", "string", "linear"),
                                 ("attention.indexer.candidate_source_layer", "i32", 99),
                                 ("attention.kv_source_layer_ids", "[]i32", [2, 400])):  # fmt: skip
            with self.subTest(key=key, value=value if not isinstance(value, list) else value[:6]):
                self.again()
                self.set(key, kind, value)
                # A configuration that is refused tells the member's name.
                self.check_refused(self.save(), "INVALID_FILE|INVALID_CONFIG|UNSUPPORTED|MISSING_TENSOR")

    def test_integers_of_any_width(self):
        expected = self.check_loads(self.save())
        for kind in ("u8", "i8", "u16", "i16", "i32", "u64", "i64"):
            with self.subTest(kind=kind):
                self.again()
                for key, (own, value) in self.gguf.metadata.items():
                    if own in ("u32", "i32", "[]u32", "[]i32") and "deepseek41" in key:
                        self.gguf.metadata[key] = (own.replace(own[-3:], kind), value)
                answer = self.check_loads(self.save())
                self.assertEqual(answer["config"], expected["config"])
                self.assertEqual(answer["outputs"], expected["outputs"])

    def test_other_architectures(self):
        for value in ("deepseek4", "deepseek2", "", "DEEPSEEK41"):
            with self.subTest(value=value):
                self.gguf.metadata["general.architecture"] = ("string", value)
                self.check_refused(self.save(), "INVALID_FILE|UNSUPPORTED", "deepseek41")
        del self.gguf.metadata["general.architecture"]
        self.check_refused(self.save(), "INVALID_FILE", "general.architecture")

    def test_a_wrong_count_of_blocks(self):
        self.set("block_count", "u32", 7)
        self.check_refused(self.save(), "INVALID_FILE|INVALID_CONFIG", "7|block_count")
        self.set("block_count", "u32", 5)  # makes the last one a draft layer, which has no ratio
        self.check_refused(self.save(), "INVALID_CONFIG|INVALID_FILE")

    # ---- Splits -----------------------------------------------------------------------------------------------------

    def shards(self, n=3):
        first = self.save(n_shards=n)
        return [pathlib.Path(str(first).replace("-00001-", f"-{k + 1:05}-")) for k in range(n)]

    def test_any_shard_names_the_whole(self):
        paths = self.shards()
        single = self.gguf.save(self.folder / "single.gguf")
        self.check_same([single, *paths])
        self.check_same([single, *paths], "--map", "--threads", 3)

    def test_a_shard_that_is_not_there(self):
        for gone in range(3):
            paths = self.shards()
            paths[gone].unlink()
            for path in paths:
                with self.subTest(gone=gone, path=path.name):
                    self.check_refused(path, "IO_ERROR", paths[gone].name)

    def test_a_shard_that_was_cut(self):
        for which in range(3):
            paths = self.shards()
            content = paths[which].read_bytes()
            for size in (0, 3, 8, 20, len(content) // 2):
                with self.subTest(which=which, size=size):
                    paths[which].write_bytes(content[:size])
                    self.check_refused(paths[0], "INVALID_FILE", paths[which].name)

    def rewrite(self, path, tensors, **split):
        """A later shard again, with other counts."""
        values = {"split.no": ("u16", 1), "split.count": ("u16", 3),
                  "split.tensors.count": ("i32", len(self.gguf.tensors))}  # fmt: skip
        values.update({key.replace("_", "."): value for key, value in split.items()})
        path.write_bytes(gguf_bytes({k: v for k, v in values.items() if v}, tensors))

    def test_counts_that_do_not_add_up(self):
        names = list(self.gguf.tensors)
        n = len(names)
        own = {name: self.gguf.tensors[name] for name in names[n // 3 : 2 * n // 3]}
        for what, tensors, split in (
            ("split.no", own, {"split_no": ("u16", 2)}),
            ("split.no", own, {"split_no": ("u16", 0)}),
            ("split.no", own, {"split_no": ("i32", -1)}),
            ("split.no", own, {"split_no": None}),
            ("split.count", own, {"split_count": ("u16", 4)}),
            ("split.count", own, {"split_count": ("u16", 0)}),
            ("split.count", own, {"split_count": ("string", "3")}),
            ("split.tensors.count", own, {"split_tensors_count": ("i32", n + 1)}),
            ("tensors", {k: own[k] for k in list(own)[1:]}, {}),
            ("tensors", {**own, "extra": Tensor("F32", [1], bytes(4))}, {}),
        ):  # fmt: skip
            with self.subTest(what=what, split=split):
                paths = self.shards()
                self.rewrite(paths[1], own)
                self.check_loads(paths[0])
                self.rewrite(paths[1], tensors, **split)
                for path in paths[:2]:
                    self.check_refused(path, "INVALID_FILE", paths[1].name + "|" + what)

    def test_shards_of_two_files(self):
        paths = self.shards()
        names = list(self.gguf.tensors)
        n = len(names)
        own = {name: self.gguf.tensors[name] for name in names[n // 3 : 2 * n // 3]}
        twice = dict(own)
        del twice[names[n // 3]]
        twice[names[0]] = self.gguf.tensors[names[0]]
        self.rewrite(paths[1], twice)
        self.check_refused(paths[0], "INVALID_FILE|MISSING_TENSOR", names[0] + "|" + names[n // 3])

    def test_a_shard_under_another_name(self):
        paths = self.shards()
        alone = self.folder / "renamed.gguf"
        paths[0].rename(alone)
        self.check_refused(alone, "IO_ERROR|INVALID_FILE", "renamed.gguf|split")

    def test_alignments(self):
        expected = self.check_loads(self.save())["outputs"]
        for options in ({"alignment": 64}, {"alignment": 64, "n_shards": 4}, {"alignment": 8}, {"alignment": 4096}):
            with self.subTest(options=options):
                for flags in ([], ["--map"]):
                    self.assertEqual(self.check_loads(self.save(**options), *flags)["outputs"], expected)
        for value in (("u32", 0), ("u32", 12), ("u64", 1 << 63), ("u64", (1 << 63) + 32), ("string", "32"),
                      ("i32", -32)):  # fmt: skip
            with self.subTest(value=value):
                self.gguf.metadata["general.alignment"] = value
                self.check_refused(self.save(), "INVALID_FILE", "alignment")

    # ---- Tensors ----------------------------------------------------------------------------------------------------

    def test_missing_tensors_are_all_named(self):
        names = ["blk.0.attn_q_a.weight", "blk.2.indexer.attn_k.weight", "blk.5.attn_sinks.weight"]
        for name in names:
            del self.gguf.tensors[name]
        self.put("blk.1.attn_kv.weight", Tensor("BF16", [64, 32], bytes(4096)))
        answer = self.check_problem(self.save(), "MISSING_TENSOR", *names, "blk.1.attn_kv.weight")
        self.assertEqual(len(answer["checkpoint"]["problems"]), 4)

    def test_tensors_without_use(self):
        for name in ("blk.0.attn_compressor_kv.weight", "blk.4.attn_compressor_gate.weight",
                     "blk.2.attn_compressor_ape.weight", "blk.2.indexer_compressor_ape.weight",
                     "blk.2.indexer_compressor_gate.weight", "blk.3.indexer.attn_q_b.weight",
                     "blk.1.attn_q.weight"):  # fmt: skip
            with self.subTest(name=name):
                self.again()
                self.put(name, Tensor("F32", [32, 64], bytes(8192)))
                # A source that no list names is told as such.
                layer, member = ("layer 0", "compressor_wkv") if "0" in name else ("layer 3", "indexer_wq_b")
                self.check_refused(self.save(), "INVALID_FILE|MISSING_TENSOR", f"{name}|{layer}", f"{name}|{member}")

    def test_lists_of_layers_beyond_any_model(self):
        self.set("attention.kv_source_layer_ids", "[]i32", list(range(60000)))
        self.check_refused(self.save(), "INVALID_FILE", "60000", "256")

    def test_layers_that_there_are_not(self):
        tensor = self.gguf.tensors["blk.0.attn_q_a.weight"]
        self.put("blk.7.attn_q_a.weight", tensor)  # not the next one: that would be a draft layer
        self.check_problem(self.save(), "INVALID_FILE", "blk.7.attn_q_a.weight", "6 layers")

    def test_numbers_of_layers_that_are_none(self):
        """Nobody's layer, so none of these stands for layer 0."""
        expected = self.check_loads(self.save())["outputs"]
        tensor = self.gguf.tensors["blk.0.attn_q_a.weight"]
        for number in ("00", "+0", "-1", " 0", "0x0", "", "0.0"):
            with self.subTest(number=number):
                self.again()
                self.put(f"blk.{number}.attn_q_a.weight", tensor)
                answer = self.probe(self.save())
                if answer["status"] == "DS41_STATUS_OK":
                    self.assertEqual(answer["outputs"], expected)
                else:
                    self.assertEqual(answer["status"], "DS41_STATUS_INVALID_FILE", answer["message"])
                del self.gguf.tensors["blk.0.attn_q_a.weight"]
                self.check_refused(self.save(), "MISSING_TENSOR|INVALID_FILE", "blk.0.attn_q_a.weight|" + number)

    def test_a_name_and_its_alias(self):
        self.put("blk.2.indexer_compressor_kv.weight", self.gguf.tensors["blk.2.indexer.attn_k.weight"])
        self.check_refused(self.save(), "INVALID_FILE", "indexer_compressor_kv|indexer.attn_k")

    def test_wrong_shapes(self):
        for name, shape in (("blk.0.attn_q_a.weight", [64, 16]), ("blk.0.attn_q_a.weight", [16, 32]),
                            ("blk.0.attn_q_a.weight", [1024]), ("blk.0.attn_q_a.weight", [2, 8, 64]),
                            ("blk.2.attn_q_a_norm.weight", [17]), ("blk.2.attn_sinks.weight", [2, 2])):  # fmt: skip
            with self.subTest(name=name, shape=shape):
                n_bytes = 4
                for size in shape:
                    n_bytes *= size
                self.again()
                self.put(name, Tensor("F32", shape, bytes(n_bytes)))
                self.check_problem(self.save(), "INVALID_SHAPE", name, ", ".join(map(str, shape)))

    def test_types_that_ours_may_not_have(self):
        for name, number, n_bytes in (("blk.0.attn_q_a.weight", 24, 1024), ("blk.0.attn_q_a.weight", 200, 4096),
                                      ("blk.0.attn_q_a.weight", 26, 4096), ("blk.0.attn_q_a.weight", 4, 4096),
                                      ("blk.2.attn_sinks.weight", 28, 32), ("blk.2.attn_sinks.weight", 999, 16),
                                      ("blk.0.attn_q_a.weight", 0x7FFFFFFF, 64)):  # fmt: skip
            with self.subTest(name=name, number=number):
                self.again()
                self.put(name, Tensor(number, self.gguf.tensors[name].shape, bytes(n_bytes)))
                self.check_problem(self.save(), "INVALID_DTYPE", name)

    def test_types_that_others_may_have(self):
        expected = self.check_loads(self.save())["outputs"]
        for number in (200, 4, 5, 16, 31, 35, 0x7FFFFFFF):
            with self.subTest(number=number):
                self.put("blk.0.ffn_down_exps.weight", Tensor(number, [4, 64, 256], bytes(1 << 18)))
                self.assertEqual(self.check_loads(self.save())["outputs"], expected)

    def test_rows_that_are_no_whole_blocks(self):
        for kind, n_bytes in (("Q2_K", 84 * 4), ("Q4_K", 144 * 4), (14, 210 * 4)):  # 16 rows of 64 values
            with self.subTest(kind=kind):
                self.again()
                self.put("blk.0.attn_q_a.weight", Tensor(kind, [16, 64], bytes(n_bytes)))
                self.check_refused(self.save(), "INVALID_FILE|INVALID_SHAPE", "blk.0.attn_q_a.weight", "64", "256")

    def test_q2_k_vectors(self):
        case = self.case("f_q2k_weights")
        gguf = make_checkpoints.make_gguf(case)
        gguf.tensors["blk.0.attn_q_a_norm.weight"] = Tensor("Q2_K", [768], bytes(3 * 84))
        self.check_problem(gguf.save(self.path), "INVALID_DTYPE", "blk.0.attn_q_a_norm.weight", "Q2_K")

    def test_a_sink_that_is_no_number(self):
        self.put("blk.3.attn_sinks.weight", Tensor("F32", [4], struct.pack("<4f", 0, 1, float("nan"), 2)))
        self.check_refused(self.save(), "INVALID_FILE", "sink", "3")

    def test_a_file_that_was_cut(self):
        content = self.save().read_bytes()
        for size in (3, 4, 7, 23, 24, 200, 2000, len(content) // 2, len(content) - 1):
            with self.subTest(size=size):
                self.path.write_bytes(content[:size])
                self.check_refused(self.path, "INVALID_FILE", "model.gguf")

    def test_other_versions(self):
        content = self.save().read_bytes()
        for version in (0, 1, 4, 0x03000000):  # the last is version 3 of a big-endian file
            with self.subTest(version=version):
                self.path.write_bytes(b"GGUF" + struct.pack("<I", version) + content[8:])
                self.check_refused(self.path, "INVALID_FILE|UNSUPPORTED", "version", "|".join((str(version), "endian")))


if __name__ == "__main__":
    main()
