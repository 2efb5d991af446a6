#!/usr/bin/env python3
"""Roles of a GGUF's layers: listed under any of the spellings that files use, derived from the tensors where no list
is, and refused where lists contradict each other or the tensors. Settings of the candidates have two spellings.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from probe import CheckpointTest, main, make_checkpoints

PREFIX = "deepseek41."


class RolesTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "model.gguf"

    def make(self, name="a_golden_stable", **options):
        self.gguf = make_checkpoints.make_gguf(self.case(name), **options)
        return self.gguf

    def save(self):
        return self.gguf.save(self.path)

    def set(self, key, value, kind="[]i32"):
        self.gguf.metadata[PREFIX + key] = (kind, value)

    def test_every_spelling_says_the_same(self):
        paths = []
        for role_keys in make_checkpoints.ROLE_KEYS:
            for candidate_keys in ("indexer", "attention"):
                for aliases in (False, True):
                    gguf = self.make(role_keys=role_keys, candidate_keys=candidate_keys, aliases=aliases)
                    paths.append(gguf.save(self.folder / f"{role_keys}.{candidate_keys}.{aliases}.gguf"))
        config = self.check_same(paths)["config"]
        for key in ("kv_source_layers", "index_source_layers", "candidate_source_layer", "candidate_topk_blocks"):
            self.assertEqual(config[key], self.case().config[key])

    def test_derived_candidates(self):
        self.make(role_keys="none", candidate_keys="none")
        config = self.check_loads(self.save())["config"]
        self.assertEqual((config["kv_source_layers"], config["index_source_layers"]), ([2, 4], [2, 4, 5]))
        self.assertEqual(config["candidate_source_layer"], 4)  # the first index source of ratio 1
        self.assertEqual((config["candidate_topk_blocks"], config["candidate_block_size"]), (2048, 8))

    def test_derived_without_a_layer_of_ratio_1(self):
        self.make("d_ratio_4_3", role_keys="none", candidate_keys="none")
        config = self.check_loads(self.save())["config"]
        self.assertEqual((config["kv_source_layers"], config["index_source_layers"]), ([1, 3], [1, 3, 4]))
        self.assertEqual(config["candidate_source_layer"], -1)

    def test_no_candidates_where_a_file_says_so(self):
        for keys in ("indexer", "attention"):
            with self.subTest(keys=keys):
                self.make(candidate_keys=keys)
                self.set(make_checkpoints.CANDIDATE_KEYS[keys][0], -1, "i32")
                self.assertEqual(self.check_loads(self.save())["config"]["candidate_source_layer"], -1)

    def test_settings_without_a_source(self):
        """The source is derived, the settings are the file's."""
        for keys in ("indexer", "attention"):
            with self.subTest(keys=keys):
                self.make(candidate_keys=keys)
                del self.gguf.metadata[PREFIX + make_checkpoints.CANDIDATE_KEYS[keys][0]]
                config = self.check_loads(self.save())["config"]
                self.assertEqual(config["candidate_source_layer"], 4)
                self.assertEqual((config["candidate_topk_blocks"], config["candidate_block_size"]), (3, 2))

    def test_lists_that_contradict_the_tensors(self):
        kv, index = make_checkpoints.ROLE_KEYS["attention_ids"]
        for key, value, words in ((kv, [2], "4"), (kv, [4], "2"), (kv, [2, 3, 4], "3"), (kv, [], "2"),
                                  (index, [2, 4], "5"), (index, [2, 3, 4, 5], "3"), (index, [5], "2")):  # fmt: skip
            with self.subTest(key=key, value=value):
                self.make()
                self.set(key, value)
                answer = self.check_refused(self.save(), "INVALID_FILE", words)
                self.assertEqual(answer["checkpoint"]["config"]["status"], "DS41_STATUS_INVALID_FILE")

    def test_a_list_of_one_kind_only(self):
        """The other is derived."""
        expected = self.check_loads(self.make() and self.save())
        for gone in make_checkpoints.ROLE_KEYS["attention_ids"]:
            with self.subTest(gone=gone):
                self.make()
                del self.gguf.metadata[PREFIX + gone]
                answer = self.check_loads(self.save())
                self.assertEqual(answer["config"], expected["config"])
                self.assertEqual(answer["outputs"], expected["outputs"])

    def test_spellings_beside_each_other(self):
        for key, value in zip(make_checkpoints.ROLE_KEYS["ids"], ([2, 4], [2, 4, 5])):
            with self.subTest(key=key, agree=True):
                self.make()
                self.set(key, value)
                self.check_loads(self.save())
        for key in make_checkpoints.ROLE_KEYS["ids"] + make_checkpoints.ROLE_KEYS["attention_layers"]:
            for value in ([2], [2, 4, 3]):
                with self.subTest(key=key, value=value):
                    self.make()
                    self.set(key, value)
                    self.check_refused(self.save(), "INVALID_FILE", key)

    def test_candidate_spellings_beside_each_other(self):
        names = make_checkpoints.CANDIDATE_KEYS
        for i, (good, bad) in enumerate(((4, 2), (3, 7), (2, 8))):
            with self.subTest(key=names["attention"][i]):
                self.make()
                self.set(names["attention"][i], good, "i32")
                self.check_loads(self.save())
                self.set(names["attention"][i], bad, "i32")
                self.check_refused(self.save(), "INVALID_FILE", names["attention"][i])

    def test_a_candidate_source_that_cannot_be_one(self):
        for layer in (0, 3, 77, -2):
            with self.subTest(layer=layer):
                self.make()
                self.set(make_checkpoints.CANDIDATE_KEYS["indexer"][0], layer, "i32")
                self.check_refused(self.save(), "INVALID_CONFIG|INVALID_FILE", "candidate_source|candidate source",
                                   str(layer))  # fmt: skip

    def test_draft_layers(self):
        whole = self.check_loads(self.make("g_draft_layer") and self.save())
        self.assertEqual(list(whole["outputs"]), ["0", "1", "2", "3", "4"])
        self.assertEqual(whole["config"]["compress_ratios"], [0, 2, 1, 1, 0])
        backbone = {layer: out for layer, out in whole["outputs"].items() if layer != "4"}
        for draft_ratios in (True, False):
            with self.subTest(draft_ratios=draft_ratios):
                self.make("g_draft_layer", draft_ratios=draft_ratios)
                for name in [name for name in self.gguf.tensors if name.startswith("blk.4.")]:
                    del self.gguf.tensors[name]
                self.assertEqual(self.check_loads(self.save())["outputs"], backbone)
        # Blocks behind the last ratio are draft layers, whose ratio is always 0.
        self.make("g_draft_layer", draft_ratios=False)
        longer = self.check_loads(self.save())
        for part in ("config", "outputs"):
            self.assertEqual(longer[part], whole[part])

    def test_roles_are_derived_from_all_shards(self):
        self.make(role_keys="none", candidate_keys="attention")
        single = self.save()
        self.check_same([single, self.gguf.save(self.folder / "split.gguf", n_shards=6)])


if __name__ == "__main__":
    main()
