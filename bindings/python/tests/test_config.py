"""Configurations: members, reading, validation, roles."""
import copy
import json
import pickle

import ds41
import pytest
from ds41 import _ds41
from ds41._config import CONFIG_MEMBERS

MADE_BY_SWIG = {"this", "thisown", "own", "disown", "acquire", "append", "next", "assign"}


def members_of(struct):
    return {name for name in dir(struct) if not name.startswith("_")} - MADE_BY_SWIG


def test_members_are_those_of_the_header():
    counts = {"n_compress_ratios", "n_kv_source_layers", "n_index_source_layers"}
    assert set(CONFIG_MEMBERS) | counts == members_of(_ds41.ds41_config)
    assert members_of(_ds41.ds41_layer_role) == set(ds41.LayerRole._fields)
    assert members_of(_ds41.ds41_memory) == set(ds41.MemoryEstimate._fields)


def test_flash_is_the_published_model():
    config = ds41.Config.flash()
    config.validate()
    assert (config.n_layers, config.n_compress_ratios, config.dim, config.index_topk) == (40, 43, 5120, 512)
    assert config.norm_eps == pytest.approx(1e-20) and config.candidate_source_layer == 20
    assert config.kv_source_layers == (2, 8, 14, 20)


def test_a_config_from_members_equals_one_from_json(case):
    config = ds41.Config(**case.config.members())
    assert config == case.config and config is not case.config
    assert ds41.Config.parse(case.metadata("config").encode()) == config
    config.window_size += 1
    assert config != case.config
    assert ds41.Config() != 3


def test_load_reads_a_file(case, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(case.metadata("config"))
    for form in (path, str(path), bytes(path)):
        assert ds41.Config.load(form) == case.config


def test_lists_count_their_entries(case):
    config = case.config.copy()
    config.compress_ratios = [0] * 3
    assert config.compress_ratios == (0, 0, 0) and config.n_compress_ratios == 3
    config.kv_source_layers = ()
    assert config.kv_source_layers == ()
    with pytest.raises(ds41.InvalidArgumentError, match="compress_ratios has 257 entries, need at most 256"):
        config.compress_ratios = [0] * 257
    with pytest.raises(TypeError, match="compress_ratios is 'x', need an integer"):
        config.compress_ratios = ["x"]
    assert config.n_compress_ratios == 3


def test_wrong_members_are_named():
    config = ds41.Config()
    with pytest.raises(TypeError, match="dim is 'x', need an integer"):
        config.dim = "x"
    with pytest.raises(ds41.InvalidArgumentError, match="dim is 1099511627776"):
        config.dim = 1 << 40
    with pytest.raises(TypeError, match="norm_eps is 'x', need a number"):
        config.norm_eps = "x"
    with pytest.raises(AttributeError):
        config.dimm = 3
    with pytest.raises(TypeError, match="no member is called 'dimm', need one of n_layers"):
        ds41.Config(dimm=3)
    with pytest.raises(TypeError, match="'parse'"):
        ds41.Config(parse=3)


def test_numpy_numbers_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert ds41.Config(dim=numpy.int64(64), norm_eps=numpy.float32(0.5)).dim == 64


def test_validation_names_the_member(case):
    config = case.config.copy()
    config.n_heads = -1
    with pytest.raises(ds41.InvalidConfigError, match="n_heads is -1"):
        config.validate()
    with pytest.raises(ds41.InvalidConfigError, match="n_heads is -1"):
        ds41.Model(config)
    assert case.config.n_heads > 0


def test_json_with_a_missing_key_is_refused(case):
    values = json.loads(case.metadata("config"))
    del values["dim"]
    with pytest.raises(ds41.InvalidFileError, match="dim"):
        ds41.Config.parse(json.dumps(values))


def test_roles(case):
    roles = [case.config.role(layer) for layer in case.layers]
    assert [role.ratio for role in roles] == list(case.config.compress_ratios)
    assert roles[2].is_kv_source is True and roles[2].kv_source == 2 and roles[0].kv_source == -1
    assert roles[0].is_draft is False and roles[3].is_kv_source is False


def test_copies_are_apart_and_survive_pickling(case):
    for other in (case.config.copy(), copy.copy(case.config), copy.deepcopy(case.config),
                  pickle.loads(pickle.dumps(case.config))):  # fmt: skip
        assert other == case.config
        other.dim = 1
        assert other != case.config
    assert "dim=64" in repr(case.config)


def test_a_model_keeps_its_own_config(case):
    config = case.config.copy()
    model = ds41.Model(config)
    config.dim = 1
    assert model.config == case.config
    model.config.dim = 2
    assert model.config == case.config
