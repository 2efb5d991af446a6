"""Every status becomes its exception, with the library's sentence."""
import pickle
import struct
import threading

import ds41
import pytest
from ds41 import _ds41
from ds41._errors import ERROR_OF_STATUS, error_of


def invalid_argument(case, model, tmp_path):
    ds41.Context(model, n_threads=-1)


def invalid_dtype(case, model, tmp_path):
    weights = case.weights(0)
    weights["q_norm"] = bytearray(case.config.q_lora_rank)
    model.set_layer(0, weights)


def invalid_shape(case, model, tmp_path):
    weights = case.weights(0)
    weights["wq_a"] = weights["wq_b"]
    model.set_layer(0, weights)


def invalid_layer(case, model, tmp_path):
    case.config.role(99)


def invalid_position(case, model, tmp_path):
    ds41.Context(model).prefill(0, ds41.Sequence(model), case.x(0, 0), start_pos=3)


def invalid_config(case, model, tmp_path):
    ds41.Config().validate()


def wrong_order(case, model, tmp_path):
    ds41.Context(model).decode_body(0, case.x(0, 0))


def missing_weights(case, model, tmp_path):
    empty = ds41.Model(case.config)
    ds41.Context(empty).prefill(0, ds41.Sequence(empty), case.x(0, 0))


def unsupported(case, model, tmp_path):
    path = tmp_path / "future.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 0, 0))
    ds41.Checkpoint(path)


def no_backend(case, model, tmp_path):
    ds41.Model(case.config, backend="abacus")


def out_of_memory(case, model, tmp_path):
    ds41.Buffer(model, 1 << 62)


def io_error(case, model, tmp_path):
    ds41.Model.load(tmp_path / "nothing")


def invalid_file(case, model, tmp_path):
    path = tmp_path / "junk.safetensors"
    path.write_bytes(b"\xff" * 64)
    ds41.File(path)


def missing_tensor(case, model, tmp_path):
    case.files[0]["no.such.tensor"]


PROVOKED = {
    ds41.Status.INVALID_ARGUMENT: (invalid_argument, ds41.InvalidArgumentError, ValueError, "n_threads is -1"),
    ds41.Status.INVALID_DTYPE: (invalid_dtype, ds41.InvalidDtypeError, TypeError, "q_norm"),
    ds41.Status.INVALID_SHAPE: (invalid_shape, ds41.InvalidShapeError, ValueError, "wq_a"),
    ds41.Status.INVALID_LAYER: (invalid_layer, ds41.InvalidLayerError, ValueError, "99"),
    ds41.Status.INVALID_POSITION: (invalid_position, ds41.InvalidPositionError, ValueError, "start_pos is 3"),
    ds41.Status.INVALID_CONFIG: (invalid_config, ds41.InvalidConfigError, ValueError, "n_layers"),
    ds41.Status.WRONG_ORDER: (wrong_order, ds41.WrongOrderError, RuntimeError, "ds41_decode_prep"),
    ds41.Status.MISSING_WEIGHTS: (missing_weights, ds41.MissingWeightsError, RuntimeError, "no weights"),
    ds41.Status.UNSUPPORTED: (unsupported, ds41.UnsupportedError, RuntimeError, "99"),
    ds41.Status.NO_BACKEND: (no_backend, ds41.NoBackendError, RuntimeError, "abacus"),
    ds41.Status.OUT_OF_MEMORY: (out_of_memory, ds41.OutOfMemoryError, MemoryError, "memory"),
    ds41.Status.IO_ERROR: (io_error, ds41.IoError, OSError, "nothing"),
    ds41.Status.INVALID_FILE: (invalid_file, ds41.InvalidFileError, ValueError, "ds41_file_load"),
    ds41.Status.MISSING_TENSOR: (missing_tensor, ds41.MissingTensorError, KeyError, "no.such.tensor"),
}
# The package initialises structs itself, a cancelled load is in test_checkpoint.py, and neither a broken device nor a
# mistake of the library's own can be ordered.
ELSEWHERE = {ds41.Status.OK, ds41.Status.INVALID_STRUCT, ds41.Status.CANCELLED, ds41.Status.DEVICE_ERROR,
             ds41.Status.INTERNAL}  # fmt: skip


def test_every_status_is_provoked_or_explained():
    assert set(PROVOKED) | ELSEWHERE == set(ds41.Status)


@pytest.mark.parametrize("status", PROVOKED, ids=lambda status: status.name)
def test_a_status_becomes_its_exception(status, case, model, tmp_path):
    provoke, cls, builtin, words = PROVOKED[status]
    with pytest.raises(ds41.Error) as caught:
        provoke(case, model, tmp_path)
    error = caught.value
    assert type(error) is cls
    assert isinstance(error, builtin)
    assert error.status == status
    assert words in error.message and str(error) == error.message


def test_statuses_are_those_of_the_header():
    prefix = "DS41_STATUS_"
    header = {name[len(prefix) :]: getattr(_ds41, name) for name in dir(_ds41) if name.startswith(prefix)}
    assert header == {status.name: int(status) for status in ds41.Status}
    assert set(ERROR_OF_STATUS) == set(header.values()) - {0}
    for status, cls in ERROR_OF_STATUS.items():
        words = ds41.Status(status).name.split("_")
        assert cls.__name__ == "".join(word.capitalize() for word in words).replace("Error", "") + "Error"
        assert _ds41.ds41_status_name(status) == prefix + ds41.Status(status).name


def test_a_status_of_a_newer_library_is_a_plain_error():
    error = error_of(77, "a sentence")
    assert type(error) is ds41.Error and error.status == 77 and error.message == "a sentence"


def test_errors_survive_pickling():
    for cls in ERROR_OF_STATUS.values():
        copy = pickle.loads(pickle.dumps(cls("a sentence")))
        assert type(copy) is cls and copy.message == "a sentence" and copy.status == cls.status


def test_the_sentence_is_that_of_the_call_when_threads_fail_at_once(case):
    wrong = []

    def fail(name):
        for _ in range(300):
            try:
                ds41.Model(case.config, backend=name)
            except ds41.NoBackendError as error:
                if f'"{name}"' not in error.message:
                    wrong.append(error.message)

    threads = [threading.Thread(target=fail, args=(f"backend{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("call", [
    lambda: _ds41.ds41_model_create(None, None),
    lambda: _ds41.ds41_model_set_layer(None, 0, _ds41.ds41_layer_weights()),
    lambda: _ds41.ds41_ctx_create(None, None),
    lambda: _ds41.ds41_seq_create(None),
    lambda: _ds41.ds41_seq_reset(None),
    lambda: _ds41.ds41_buffer_create(None, 1),
    lambda: _ds41.ds41_file_load(None),
    lambda: _ds41.ds41_checkpoint_load(None),
    lambda: _ds41.ds41_layer_prefill(None, 0, None, None, 1, 0, None),
    lambda: _ds41.ds41_decode_prep(None, []),
    lambda: _ds41.ds41_decode_body(None, 0, None, None),
])  # fmt: skip
def test_null_is_refused_by_the_raw_layer(call):
    with pytest.raises(ds41.InvalidArgumentError, match="is NULL"):
        call()


def test_spans_with_no_sequence_are_refused(model, ctx):
    with pytest.raises(ds41.InvalidArgumentError, match="seq is NULL"):
        _ds41.ds41_decode_prep(ctx._use().pointer, [(None, 0, 1)])


@pytest.mark.parametrize("call, error, words", [
    (lambda m, c, s, x: ds41.Model(None), TypeError, "config is None, need a ds41.Config"),
    (lambda m, c, s, x: ds41.Model({"dim": 1}), TypeError, "need a ds41.Config"),
    (lambda m, c, s, x: ds41.Model(m.config, backend=3), TypeError, "backend is 3, need a string"),
    (lambda m, c, s, x: ds41.Model(m.config, backend="a\0b"), ds41.InvalidArgumentError, "without NUL"),
    (lambda m, c, s, x: ds41.Model(m.config, log="print"), TypeError, "log is 'print', need a function"),
    (lambda m, c, s, x: ds41.Model(m.config, topk_rule=9), ds41.InvalidArgumentError, "topk_rule is 9"),
    (lambda m, c, s, x: ds41.Model(m.config, topk_rule=1 << 40), ds41.InvalidArgumentError, "topk_rule is 10995116"),
    (lambda m, c, s, x: ds41.Context(None), TypeError, "model is None, need a ds41.Model"),
    (lambda m, c, s, x: ds41.Context(m, n_threads="many"), TypeError, "n_threads is 'many', need an integer"),
    (lambda m, c, s, x: ds41.Context(m, stream=64), ds41.InvalidArgumentError, "stream"),
    (lambda m, c, s, x: ds41.Context(m, topk_end_pos=-1), ds41.InvalidArgumentError, "topk_end_pos is -1"),
    (lambda m, c, s, x: ds41.Context(m, parallel=1), TypeError, "parallel is 1, need a function"),
    (lambda m, c, s, x: ds41.Sequence(c), TypeError, "need a ds41.Model"),
    (lambda m, c, s, x: ds41.Buffer(m, 0), ds41.InvalidArgumentError, "n_bytes"),
    (lambda m, c, s, x: ds41.Buffer(m, -1), ds41.InvalidArgumentError, "n_bytes is -1"),
    (lambda m, c, s, x: ds41.Buffer(m, 1.5), TypeError, "n_bytes is 1.5, need an integer"),
    (lambda m, c, s, x: ds41.File(7), TypeError, ""),
    (lambda m, c, s, x: ds41.File("a\0b"), ValueError, "null"),
    (lambda m, c, s, x: c.prefill(0, None, x), TypeError, "seq is None, need a ds41.Sequence"),
    (lambda m, c, s, x: c.prefill("0", s, x), TypeError, "layer is '0', need an integer"),
    (lambda m, c, s, x: c.prefill(1 << 33, s, x), ds41.InvalidArgumentError, "layer is 8589934592"),
    (lambda m, c, s, x: c.prefill(-2, s, x), ds41.InvalidLayerError, "-2"),
    (lambda m, c, s, x: c.prefill(0, s, None), TypeError, "x is a NoneType, need an array"),
    (lambda m, c, s, x: c.decode_prep([]), ds41.InvalidArgumentError, "n_spans"),
    (lambda m, c, s, x: c.decode_prep([s, s]), ds41.InvalidArgumentError, "each sequence once"),
    (lambda m, c, s, x: c.decode_prep([(s, 0, 0)]), ds41.InvalidArgumentError, "n_tokens"),
    (lambda m, c, s, x: c.decode_prep([(s, 1, 5)]), ds41.InvalidPositionError, "start_pos is 5"),
    (lambda m, c, s, x: c.decode_prep([(s, "1", 5)]), TypeError, "n_tokens is '1', need an integer"),
    (lambda m, c, s, x: c.decode_prep([7]), TypeError, ""),
    (lambda m, c, s, x: c.set_tap(print, ["qq"]), ds41.InvalidArgumentError, "qq"),
    (lambda m, c, s, x: c.set_tap(print, "q"), TypeError, "need a sequence of strings"),
    (lambda m, c, s, x: c.set_tap(print, [1]), TypeError, "names is 1, need a string"),
    (lambda m, c, s, x: c.set_tap(3), TypeError, "tap is 3, need a function"),
    (lambda m, c, s, x: s.position(1000), ds41.InvalidLayerError, "1000"),
    (lambda m, c, s, x: s.reserve(-1), ds41.InvalidArgumentError, "n_positions is -1"),
    (lambda m, c, s, x: m.estimate_memory(-1), ds41.InvalidArgumentError, "n_seqs is -1"),
    (lambda m, c, s, x: c.decode_capturable(1000), ds41.InvalidLayerError, "1000"),
    (lambda m, c, s, x: ds41.Config.parse(3), TypeError, "json is 3, need a string or bytes"),
    (lambda m, c, s, x: ds41.Config.parse("{"), ds41.InvalidFileError, "JSON"),
    (lambda m, c, s, x: ds41.Config.load("/no/such/file"), ds41.IoError, "/no/such/file"),
])  # fmt: skip
def test_wrong_arguments_are_named(call, error, words, model, ctx, seq, x):
    with pytest.raises(error, match=words.replace("[", r"\[") or None):
        call(model, ctx, seq, x)
    assert len(ctx.prefill(0, seq, x).shape) == 2  # and nothing has changed


def test_a_foreign_sequence_is_refused(case, ctx, x):
    with pytest.raises(ds41.InvalidArgumentError, match="seq"):
        ctx.prefill(0, ds41.Sequence(case.model()), x)


def test_weights_are_named_when_they_are_wrong(case):
    model = ds41.Model(case.config)
    with pytest.raises(ds41.InvalidArgumentError, match="no weight is called 'wq_c', need one of wq_a, q_norm"):
        model.set_layer(0, {"wq_c": bytearray(4)})
    with pytest.raises(ds41.InvalidArgumentError, match="wq_a"):
        model.set_layer(0, {})
    with pytest.raises(TypeError, match="wq_a is a list, need an array"):
        model.set_layer(0, {**case.weights(0), "wq_a": [1.0]})
    with pytest.raises(ds41.InvalidLayerError):
        model.set_layer(99, case.weights(0))
    model.set_layer(0, {**case.weights(0), "indexer_wk": None})
    seq = ds41.Sequence(model)
    with pytest.raises(ds41.WrongOrderError, match="immutable"):
        model.set_layer(0, case.weights(0))
    seq.close()
