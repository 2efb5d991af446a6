"""Outputs: the C library's bits, the golden values within their tolerance, and the same bits whichever way."""
import ctypes
import json
import os
import pathlib
import subprocess
import sys

import ds41
import pytest
from conftest import FIXTURES, ROOT, Case

np = pytest.importorskip("numpy")


def run(case, model, chunk=None, give=lambda tensor: tensor, **options):
    """Outputs of all steps and layers as bytes."""
    outputs = {}
    ctx, seq = ds41.Context(model, **options), ds41.Sequence(model)
    for s, step in enumerate(case.steps):
        n = step["tokens"]
        if step["start_pos"] == 0:
            seq.reset()
            parts = [(start, min(start + (chunk or n), n)) for start in range(0, n, chunk or n)]
            for start, end in parts:
                for layer in case.layers:
                    rows = give(memoryview(case.x(s, layer))[start:end])
                    out = ctx.prefill(layer, seq, rows, start_pos=start)
                    outputs[s, layer] = outputs.get((s, layer), b"") + ds41.Tensor(out).tobytes()
        else:
            ctx.decode_prep([(seq, n, step["start_pos"])])
            for layer in case.layers:
                outputs[s, layer] = ds41.Tensor(ctx.decode_body(layer, give(memoryview(case.x(s, layer))))).tobytes()
    return outputs


class CTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("scales", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4),
        ("scale_shape", ctypes.c_int64 * 2), ("dtype", ctypes.c_int32), ("n_dims", ctypes.c_int32),
        ("flags", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
    ]  # fmt: skip


class CSpan(ctypes.Structure):
    _fields_ = [("seq", ctypes.c_void_p), ("start_pos", ctypes.c_int64), ("n_tokens", ctypes.c_int32),
                ("reserved", ctypes.c_int32)]  # fmt: skip


def run_in_c(library, checkpoint, case):
    """The same by the C functions themselves, with weights from a checkpoint."""
    c = ctypes.CDLL(library)
    c.ds41_last_error.restype = ctypes.c_char_p

    def call(function, *arguments):
        assert function(*arguments) == 0, c.ds41_last_error()

    def tensor(data, n):
        shape = (ctypes.c_int64 * 4)(n, case.config.dim)
        return CTensor(data=ctypes.addressof(data), shape=shape, dtype=int(ds41.Dtype.BF16), n_dims=2)

    model, ctx, seq = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call(c.ds41_model_load, ctypes.byref(model), os.fsencode(checkpoint), None)
    call(c.ds41_ctx_create, ctypes.byref(ctx), model, None)
    call(c.ds41_seq_create, ctypes.byref(seq), model)
    outputs = {}
    for s, step in enumerate(case.steps):
        n, start_pos = step["tokens"], step["start_pos"]
        if start_pos > 0:
            span = CSpan(seq.value, start_pos, n)
            call(c.ds41_decode_prep, ctx, ctypes.byref(span), 1)
        for layer in case.layers:
            data = case.x(s, layer).tobytes()
            rows, result = (ctypes.create_string_buffer(data, len(data)) for _ in range(2))
            x, out = tensor(rows, n), tensor(result, n)
            if start_pos > 0:
                call(c.ds41_decode_body, ctx, layer, ctypes.byref(x), ctypes.byref(out))
            else:
                call(c.ds41_layer_prefill, ctx, layer, seq, ctypes.byref(x), n, ctypes.c_int64(0), ctypes.byref(out))
            outputs[s, layer] = result.raw
    c.ds41_seq_destroy(seq)
    c.ds41_ctx_destroy(ctx)
    c.ds41_model_destroy(model)
    return outputs


@pytest.mark.skipif("DS41_LIBRARY" not in os.environ, reason="DS41_LIBRARY names no shared library to compare with")
@pytest.mark.parametrize("name, form", [("a_golden_stable", "release"), ("e_fp8_weights", "release"),
                                        ("f_q2k_weights", "gguf"), ("g_draft_layer", "flat")])  # fmt: skip
def test_outputs_are_the_bits_of_the_c_library(name, form, make_checkpoint):
    case = Case(name)
    made = make_checkpoint(name, form)
    expected = run_in_c(os.environ["DS41_LIBRARY"], made, case)
    assert run(case, case.model()) == expected
    assert run(case, ds41.Model.load(made)) == expected


@pytest.mark.parametrize("borrow", [False, True])
def test_chunks_threads_and_ownership_do_not_change_a_bit(case, borrow):
    expected = run(case, case.model(), n_threads=1)
    model = case.model(borrow=borrow)
    for chunk, n_threads in ((1, 1), (5, 2), (7, 0), (None, 3)):
        assert run(case, model, chunk, n_threads=n_threads) == expected


def test_prefill_token_by_token_is_decode(case, model, ctx):
    """A token decoded behind a prefill of the others gives the last row of the whole prefill."""
    n = case.steps[0]["tokens"]
    whole, split = ds41.Sequence(model), ds41.Sequence(model)
    expected = [memoryview(ctx.prefill(layer, whole, case.x(0, layer)))[n - 1 :].tobytes() for layer in case.layers]
    for layer in case.layers:
        ctx.prefill(layer, split, memoryview(case.x(0, layer))[: n - 1])
    ctx.decode_prep([split])
    last = [ctx.decode_body(layer, memoryview(case.x(0, layer))[n - 1 :]).tobytes() for layer in case.layers]
    assert last == expected


def test_sequences_in_one_step_do_not_touch_each_other(case, model, ctx):
    seqs = [ds41.Sequence(model) for _ in range(3)]
    for seq in seqs:
        for layer in case.layers:
            ctx.prefill(layer, seq, case.x(0, layer))
    alone, row = [], lambda layer: bytes(memoryview(case.x(1, layer)).cast("B"))
    ctx.decode_prep([seqs[0]])
    for layer in case.layers:
        alone.append(ctx.decode_body(layer, case.x(1, layer)).tobytes())
    ctx.decode_prep([ds41.Span(seqs[1]), ds41.Span(seqs[2], 1, 12)])
    for layer in case.layers:
        both = memoryview(bytearray(row(layer) * 2)).cast("H", (2, case.config.dim))
        assert ctx.decode_body(layer, both).tobytes() == alone[layer] * 2


def golden_cases():
    names = {path.name.split(".")[0] for path in FIXTURES.glob("[a-h]_*.safetensors")}
    return sorted(names - {"a_golden_reference_rules"})  # torch's rule: below


def floats(tensor):
    bits = np.frombuffer(tensor.tobytes(), np.uint16 if tensor.dtype == ds41.Dtype.BF16 else np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == ds41.Dtype.BF16 else bits


def assert_golden(case, outputs, prefix):
    """|a - b| <= 2^-7 max|b| + 2^-7 |b|, the rule of the files."""
    compared = 0
    for (step, layer), output in outputs.items():
        for kind in ("out", "out_tail"):
            name = f"step{step}.layer{layer}.{prefix}{kind}"
            if name in case.file_of:
                b = floats(case[name])
                a = (np.frombuffer(output, np.uint16).astype(np.uint32) << 16).view(np.float32)[-len(b) :]
                assert np.all(np.abs(a - b) <= 2.0**-7 * np.abs(b).max() + 2.0**-7 * np.abs(b)), name
                compared += 1
    assert compared == len(outputs)


@pytest.mark.parametrize("name", golden_cases())
def test_outputs_are_golden(name):
    """Rows may leave the rule where activations are quantised: there the plain arithmetic is compared."""
    case = Case(name)
    modes = json.loads(case.metadata("modes") or "{}")
    prefix = next((prefix for prefix, mode in modes.items() if mode in ("expanded", "bf16act")), "")
    assert_golden(case, run(case, case.model(plain_activations=bool(modes)), n_threads=1), prefix)


def test_torchs_rule_is_golden_in_chunks_that_know_the_end():
    case = Case("a_golden_reference_rules")
    model = case.model(topk_rule=ds41.TopkRule.TORCH_CPU)
    for chunk in (None, 5):
        assert_golden(case, run(case, model, chunk, topk_end_pos=case.steps[0]["tokens"]), "")


def test_ml_dtypes_rows_give_the_bits_of_uint16_rows(case, model):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = run(case, model, give=lambda rows: np.array(rows))
    assert run(case, model, give=lambda rows: np.array(rows).view(ml_dtypes.bfloat16)) == expected


def test_taps_are_golden(case, model, ctx, seq):
    taps = {}
    ctx.set_tap(lambda tap: taps.__setitem__((tap.layer, tap.name), tap), ["idx", "kv_rows"])
    for layer in case.layers:
        ctx.prefill(layer, seq, case.x(0, layer))
    for layer in case.layers:
        expected = case[f"step0.layer{layer}.idx"]
        tap = taps[layer, "idx"]
        assert tap.tensor.dtype == ds41.Dtype.I32 and tap.tensor.shape == expected.shape
        assert tap.tensor.tobytes() == expected.tobytes()
        assert (tap.span, tap.start_pos, tap.n_tokens) == (0, 0, case.steps[0]["tokens"])
        assert taps[layer, "kv_rows"].tensor.dtype == ds41.Dtype.BF16


def test_the_example_prints_what_the_c_example_prints():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "python" / "quickstart.py", FIXTURES / "a_golden_stable.safetensors"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(pathlib.Path(ds41.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    c_example = os.environ.get("DS41_C_QUICKSTART")
    if c_example is None:
        assert len(done.stdout.splitlines()) == 6
    else:
        command = [c_example, FIXTURES / "a_golden_stable.safetensors"]
        c = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == c.stdout
