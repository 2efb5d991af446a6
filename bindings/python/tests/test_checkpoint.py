"""Checkpoints: what they hold, what they will take, loading with its options, progress and log."""
import weakref

import ds41
import pytest
from conftest import Case


def prompt(case, model):
    ctx, seq = ds41.Context(model), ds41.Sequence(model)
    return [ctx.prefill(layer, seq, case.x(0, layer)).tobytes() for layer in range(model.config.n_compress_ratios)]


@pytest.mark.parametrize("form, format_", [("release", "safetensors"), ("flat", "safetensors"), ("gguf", "gguf")])
def test_a_checkpoint_tells_what_it_holds(case, make_checkpoint, form, format_):
    with ds41.Checkpoint(make_checkpoint(form=form)) as checkpoint:
        assert checkpoint.format == format_ and format_ in repr(checkpoint)
        assert checkpoint.problems == []
        assert len(checkpoint.files) == (2 if form == "release" else 1)  # of three: one has no attention tensors
        assert checkpoint.config.compress_ratios == case.config.compress_ratios
        tensors = checkpoint.tensors
        assert [(t.layer, t.member) for t in tensors] == [(k, name) for k in case.layers for name in case.weights(k)]
        first = tensors[0]
        assert first.shape == case["layers.0.attn.wq_a.weight"].shape and first.type in ("F32", "BF16")
        assert tensors[1].shape == case["layers.0.attn.q_norm.weight"].shape
        assert first.dtype.name == first.type and first.n_bytes == first.n_model_bytes > 0
        assert all(0 <= t.file < len(checkpoint.files) for t in tensors)
        assert ("wq_a" in first.name) or ("attn_q_a" in first.name)
    with pytest.raises(ds41.ClosedError, match="the Checkpoint is closed"):
        checkpoint.tensors


def test_problems_are_told(make_checkpoint):
    path = make_checkpoint()
    shard = sorted(path.glob("*.safetensors"))[1]
    shard.unlink()
    problems = ds41.Checkpoint(path).problems
    assert problems and all(isinstance(problem, str) for problem in problems)
    with pytest.raises(ds41.Error):
        ds41.Model.load(path)


def test_estimates_come_true(case, make_checkpoint):
    path = make_checkpoint()
    estimate = ds41.Checkpoint(path).estimate_memory(2, 20, 12)
    model = ds41.Model.load(path)
    assert estimate == model.estimate_memory(2, 20, 12)
    assert estimate.total == sum(estimate) and estimate.weights > 0
    assert ds41.Checkpoint(path).estimate_memory(2, 20, 12, map=True).weights < estimate.weights
    some = ds41.Checkpoint(path).estimate_memory(1, 20, 12, first_layer=1, n_layers=1)
    assert 0 < some.weights < estimate.weights
    seqs = [ds41.Sequence(model) for _ in range(2)]
    for seq in seqs:
        seq.reserve(20)
    state = estimate.window + estimate.compressed + estimate.index_keys + estimate.group_state
    assert sum(seq.n_bytes for seq in seqs) == state


def test_options_of_a_load(case, make_checkpoint):
    path = make_checkpoint()
    expected = prompt(case, case.model())
    assert prompt(case, ds41.Model.load(path, map=True, n_threads=1)) == expected
    by_reference = prompt(case, case.model(backend="reference"))
    assert prompt(case, ds41.Model.load(str(path), backend="reference")) == by_reference
    short = ds41.Model.load(path, max_seq_len=32, backend="reference", topk_rule=ds41.TopkRule.STABLE)
    assert short.backend == "reference" and short.config.max_seq_len == 32
    config = case.config.copy()
    config.max_seq_len = 48
    assert ds41.Model.load(path, config=config).config == config
    part = ds41.Model.load(path, first_layer=1, n_layers=1)
    ctx, seq = ds41.Context(part), ds41.Sequence(part)
    assert ctx.prefill(1, seq, case.x(0, 1)).tobytes() == expected[1]
    for layer in (0, 2):
        with pytest.raises(ds41.MissingWeightsError):
            ctx.prefill(layer, ds41.Sequence(part), case.x(0, layer))


def test_arithmetic_of_quantised_weights(make_checkpoint):
    case = Case("e_fp8_weights")
    path = make_checkpoint("e_fp8_weights")
    plain = prompt(case, ds41.Model.load(path, expand_fp8=True))
    assert plain == prompt(case, case.model(plain_activations=True)) != prompt(case, ds41.Model.load(path))


def test_arithmetic_of_q2_k(make_checkpoint):
    case = Case("f_q2k_weights")
    path = make_checkpoint("f_q2k_weights", "gguf")
    plain = prompt(case, ds41.Model.load(path, plain_q2_k=True))
    assert plain == prompt(case, case.model(plain_activations=True)) != prompt(case, ds41.Model.load(path))


@pytest.mark.parametrize("options, error, words", [
    ({"n_threads": -1}, ds41.InvalidArgumentError, "n_threads"),
    ({"n_threads": "x"}, TypeError, "n_threads is 'x', need an integer"),
    ({"max_seq_len": -1}, ds41.InvalidArgumentError, "max_seq_len"),
    ({"first_layer": 99}, ds41.InvalidLayerError, "99"),
    ({"backend": "abacus"}, ds41.NoBackendError, "abacus"),
    ({"progress": 3}, TypeError, "progress is 3, need a function"),
    ({"log": 3}, TypeError, "log is 3, need a function"),
    ({"config": {}}, TypeError, "config is {}, need a ds41.Config"),
    ({"config": ds41.Config()}, ds41.InvalidConfigError, "n_layers"),
])  # fmt: skip
def test_wrong_options_are_named(make_checkpoint, options, error, words):
    with pytest.raises(error, match=words):
        ds41.Model.load(make_checkpoint(), **options)


def test_progress_goes_from_nothing_to_everything(make_checkpoint):
    seen = []
    ds41.Model.load(make_checkpoint(), progress=lambda *told: seen.append(told))
    done = [n_done for n_done, _, _ in seen]
    assert done[0] == 0 and done == sorted(done) and done[-1] == seen[-1][1] > 0
    assert any("wq_a" in tensor for _, _, tensor in seen)


def test_progress_cancels(make_checkpoint):
    calls = []

    def progress(n_done, n_total, tensor):
        calls.append(n_done)
        return len(calls) == 2

    with pytest.raises(ds41.CancelledError) as caught:
        ds41.Model.load(make_checkpoint(), progress=progress)
    assert caught.value.status == ds41.Status.CANCELLED and len(calls) == 2


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt()])
def test_an_exception_of_progress_cancels_and_comes_out(make_checkpoint, error):
    def progress(*_):
        raise error

    with pytest.raises(type(error)) as caught:
        ds41.Model.load(make_checkpoint(), progress=progress)
    assert caught.value is error


def test_the_log_says_what_was_chosen(case, make_checkpoint):
    path = make_checkpoint()
    said = []
    model = ds41.Model.load(path, log=lambda level, message: said.append((level, message)))
    assert all(isinstance(level, ds41.LogLevel) for level, _ in said)
    assert any(level == ds41.LogLevel.INFO and model.backend in message for level, message in said)


def test_an_exception_of_the_log_is_reported_and_does_no_harm(case, monkeypatch):
    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda info: reported.append(info.exc_value))
    error = ZeroDivisionError("mine")

    def log(level, message):
        raise error

    assert ds41.Model(case.config, log=log).backend == "cpu"
    assert reported == [error]


def test_a_mapped_model_keeps_its_files(case, make_checkpoint):
    model = ds41.Model.load(make_checkpoint(), map=True)
    handle = weakref.ref(model._handle)
    ctx, seq = ds41.Context(model), ds41.Sequence(model)
    model.close()
    assert handle() is not None
    assert ctx.prefill(0, seq, case.x(0, 0)).tobytes() == prompt(case, case.model())[0]


def test_files_are_mappings(case):
    file = case.files[0]
    assert len(file) == len(list(file)) == len(file.keys()) > 100
    assert list(file) == sorted(file) and "layers.0.attn.wkv.weight" in file and "x" not in file
    assert file.get("x") is None
    assert file.metadata("no such key") is None
    with pytest.raises(KeyError):
        file["x"]
    with pytest.raises(TypeError, match="name is 3, need a string"):
        file[3]
    assert file == file and hash(file) is not None
    assert set(file.layer_weights(0)) == {"wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "attn_sink", "wo_a", "wo_b"}
