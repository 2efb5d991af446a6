"""Arrays in and out: which are taken, without a copy, and which are refused before the library sees them."""
import array
import io
import weakref

import ds41
import pytest
from conftest import Case
from ds41 import _ds41


class Memory(bytearray):
    """Memory that can be watched."""


def rows_of(x):
    return memoryview(bytearray(x.tobytes())).cast("H", x.shape)


def expected_of(model, x):
    return ds41.Context(model, n_threads=1).prefill(0, ds41.Sequence(model), x).tobytes()


class OnlyDlpack:
    """An array that speaks DLPack alone, from a tensor's memory; `old` has never heard of versions."""

    def __init__(self, tensor, device=None, old=False):
        self.tensor = tensor
        self.device = device or tensor.__dlpack_device__()
        self.n_taken = 0
        if old:
            self.__class__ = OldDlpack

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, max_version=None):
        self.n_taken += 1
        return self.tensor.__dlpack__(max_version=max_version)


class OldDlpack(OnlyDlpack):
    def __dlpack__(self):
        self.n_taken += 1
        return self.tensor.__dlpack__()


def test_anything_with_the_buffer_protocol_is_taken(model, ctx, x):
    expected = expected_of(model, x)
    flat = array.array("H", x.tobytes())
    as_rows = [memoryview(flat).cast("B").cast("H", x.shape), memoryview(x.tobytes()).cast("H", x.shape)]
    for rows in (rows_of(x), *as_rows, x):
        out = rows_of(x)
        assert ctx.prefill(0, ds41.Sequence(model), rows, out=out) is out
        assert out.tobytes() == expected


def test_a_layer_works_in_place(model, ctx, x):
    expected = expected_of(model, x)
    rows = rows_of(x)
    assert ctx.prefill(0, ds41.Sequence(model), rows, out=rows) is rows
    assert rows.tobytes() == expected


def test_memory_is_not_copied(x):
    rows = rows_of(x)
    tensor = ds41.Tensor(rows)
    assert tensor.address == _ds41.address_of(rows)
    assert ds41.Tensor(OnlyDlpack(tensor)).address == tensor.address
    memoryview(tensor).cast("B")[0] = 77
    assert rows.tobytes()[0] == 77


def test_buffers_are_inputs_and_outputs(model, ctx, x):
    expected = expected_of(model, x)
    buffer = ds41.Buffer(model, 2 * x.n_bytes)
    buffer.upload(x)
    rows, out = buffer.tensor(x.shape), buffer.tensor(x.shape, offset=x.n_bytes)
    ctx.prefill(0, ds41.Sequence(model), rows, out=out)
    assert buffer.download(offset=x.n_bytes) == expected
    target = bytearray(x.n_bytes)
    assert buffer.download(target, offset=x.n_bytes) is target and target == expected
    assert buffer.download(offset=8, n_bytes=4) == x.tobytes()[8:12]
    assert rows.address == buffer.address and rows.address % 64 == 0 and buffer.n_bytes == 2 * x.n_bytes


@pytest.mark.parametrize("call, error, words", [
    (lambda b: b.tensor([9]), ds41.InvalidArgumentError, "bytes 0 to 18"),
    (lambda b: b.tensor([8], offset=1), ds41.InvalidArgumentError, "bytes 1 to 17"),
    (lambda b: b.tensor([8], offset=-2), ds41.InvalidArgumentError, "offset is -2"),
    (lambda b: b.tensor([]), ds41.InvalidShapeError, "1 to 4 dimensions"),
    (lambda b: b.tensor([1] * 5), ds41.InvalidShapeError, "1 to 4 dimensions"),
    (lambda b: b.tensor([2, 0]), ds41.InvalidShapeError, "[2, 0]"),
    (lambda b: b.tensor([2], "float8"), ds41.InvalidDtypeError, "dtype is 'float8', need one of F32, BF16"),
    (lambda b: b.upload(bytes(17)), ds41.InvalidArgumentError, ""),
    (lambda b: b.upload(b"1", offset=16), ds41.InvalidArgumentError, ""),
    (lambda b: b.upload(b"1", offset=-1), ds41.InvalidArgumentError, "offset is -1"),
    (lambda b: b.upload([1, 2]), TypeError, "source is a list, need an array"),
    (lambda b: b.upload(memoryview(bytes(8))[::2]), ds41.InvalidArgumentError, "not contiguous"),
    (lambda b: b.download(bytes(4)), ds41.InvalidArgumentError, "read-only"),
    (lambda b: b.download(offset=17), ds41.InvalidArgumentError, ""),
    (lambda b: b.download(n_bytes=17), ds41.InvalidArgumentError, "17 bytes"),
    (lambda b: b.download(n_bytes=-1), ds41.InvalidArgumentError, "-1 bytes"),
    (lambda b: b.download(bytearray(17)), ds41.InvalidArgumentError, ""),
    (lambda b: b.download(bytearray(4), n_bytes=4), ds41.InvalidArgumentError, "n_bytes"),
])  # fmt: skip
def test_buffers_refuse_what_does_not_fit(model, call, error, words):
    buffer = ds41.Buffer(model, 16)
    buffer.upload(bytes(range(16)))
    with pytest.raises(error, match=words.replace("[", r"\[") or None):
        call(buffer)
    assert buffer.download() == bytes(range(16))


@pytest.mark.parametrize("old", [False, True])
def test_dlpack_is_taken(model, ctx, x, old):
    expected = expected_of(model, x)
    rows, out = OnlyDlpack(ds41.Tensor(rows_of(x)), old=old), OnlyDlpack(ds41.Tensor(rows_of(x)), old=old)
    ctx.prefill(0, ds41.Sequence(model), rows, out=out)
    assert out.tensor.tobytes() == expected
    assert rows.n_taken == out.n_taken == 1


@pytest.mark.parametrize("old", [False, True])
def test_dlpack_memory_is_given_back(x, old):
    owner = Memory(x.tobytes())
    reference = weakref.ref(owner)
    taken = ds41.Tensor(OnlyDlpack(ds41.Tensor(memoryview(owner).cast("H", x.shape)), old=old))
    del owner
    assert taken.tobytes() == x.tobytes()
    del taken
    assert reference() is None


def test_dlpack_of_a_device_is_refused_untouched(model, ctx, seq, x):
    names = {(2, 1): "CUDA device 1", (10, 0): "ROCm device 0", (99, 0): "device type 99 .of DLPack., number 0"}
    for device, name in names.items():
        rows = OnlyDlpack(x, device)
        with pytest.raises(ds41.UnsupportedError, match=f"x is on {name}, backend cpu computes with tensors in host"):
            ctx.prefill(0, seq, rows)
        with pytest.raises(ds41.UnsupportedError, match="out is on"):
            ctx.prefill(0, seq, x, out=rows)
        with pytest.raises(ds41.UnsupportedError, match="wq_a is on"):
            model.set_layer(0, {"wq_a": rows})
        assert rows.n_taken == 0


def test_a_read_only_tensor_says_so_by_dlpack(x):
    tensor = ds41.Tensor(memoryview(x.tobytes()).cast("H", x.shape))
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert ds41.Tensor(OnlyDlpack(tensor)).read_only
    with pytest.raises(ds41.InvalidArgumentError, match="source cannot be taken by DLPack: the tensor is read-only"):
        ds41.Tensor(OldDlpack(tensor))


def test_dlpack_requests_that_cannot_be_met(x):
    with pytest.raises(BufferError, match="copy"):
        x.__dlpack__(copy=True)
    with pytest.raises(BufferError, match=r"dl_device is \(2, 0\), need \(1, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    assert x.__dlpack__(copy=False, dl_device=(1, 0), stream=None) is not None
    with pytest.raises(BufferError, match="aligned"):
        ds41.Tensor(memoryview(bytearray(9))[1:].cast("f")).__dlpack__()
    capsule = x.__dlpack__()
    _ds41.take_dlpack(capsule)
    with pytest.raises(BufferError, match="taken already"):
        _ds41.take_dlpack(capsule)
    with pytest.raises(BufferError):
        _ds41.take_dlpack(None)


def test_a_dlpack_capsule_that_is_no_array_is_refused(ctx, seq):
    class Liar:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, max_version=None):
            return 5

    with pytest.raises(ds41.InvalidArgumentError, match="x cannot be taken by DLPack: .* no capsule"):
        ctx.prefill(0, seq, Liar())


@pytest.mark.parametrize("make, error, words", [
    (lambda x: memoryview(bytearray(12 * 64 * 4)).cast("f", x.shape), ds41.InvalidDtypeError, "x is F32, need BF16"),
    (lambda x: memoryview(bytearray(12 * 64 * 8)).cast("d", x.shape), ds41.InvalidDtypeError, "x is float64"),
    (lambda x: memoryview(bytearray(12 * 64 * 8)).cast("q", x.shape), ds41.InvalidDtypeError, "x is int64"),
    (lambda x: memoryview(bytearray(12 * 64 * 2)).cast("h", x.shape), ds41.InvalidDtypeError, "x is int16"),
    (lambda x: memoryview(bytearray(12 * 64)).cast("B", x.shape), ds41.InvalidDtypeError, "x is U8, need BF16"),
    (lambda x: rows_of(x)[::2], ds41.InvalidArgumentError, "x is not contiguous .shape .6, 64."),
    (lambda x: rows_of(x)[::-1], ds41.InvalidArgumentError, "x is not contiguous"),
    (lambda x: rows_of(x).cast("B").cast("H"), ds41.InvalidShapeError, "x has shape .768., need .n, 64."),
    (lambda x: rows_of(x).cast("B").cast("H", (24, 32)), ds41.InvalidShapeError, "x has shape .24, 32., need .n, 64."),
    (lambda x: rows_of(x)[:0], ds41.InvalidShapeError, "x has shape .0, 64."),
    (lambda x: rows_of(x).cast("B").cast("H", (1, 1, 1, 12, 64)), ds41.InvalidShapeError, "x has 5 dimensions"),
    (lambda x: [[0.5] * 64], TypeError, "x is a list, need an array"),
    (lambda x: "rows", TypeError, "x is a str, need an array"),
    (lambda x: None, TypeError, "x is a NoneType, need an array"),
    (lambda x: 3, TypeError, "x is a int, need an array"),
    (lambda x: object(), TypeError, "x is a object, need an array"),
])  # fmt: skip
def test_wrong_arrays_are_refused(model, ctx, seq, x, make, error, words):
    with pytest.raises(error, match="Context.prefill: " + words):
        ctx.prefill(0, seq, make(x))
    ctx.decode_prep([(seq, 12, 0)])
    with pytest.raises(error, match="Context.decode_body: " + words):
        ctx.decode_body(0, make(x))
    if make(x) is not None:
        of_out = words.replace("x is", "out is").replace("x has", "out has")
        with pytest.raises(error, match="Context.prefill: " + of_out):
            ctx.prefill(0, seq, x, out=make(x))
    assert seq.position() == 0


def test_wrong_outputs_are_refused(ctx, seq, x):
    with pytest.raises(ds41.InvalidArgumentError, match="out is read-only"):
        ctx.prefill(0, seq, x, out=memoryview(x.tobytes()).cast("H", x.shape))
    with pytest.raises(ds41.InvalidShapeError, match=r"out has shape \[11, 64\], need \[12, 64\] \(that of x\)"):
        ctx.prefill(0, seq, x, out=rows_of(x)[:11])
    overlapping = memoryview(bytearray(x.n_bytes + 128)).cast("H", (13, 64))
    with pytest.raises(ds41.InvalidArgumentError, match="overlaps"):
        ctx.prefill(0, seq, overlapping[:12], out=overlapping[1:])
    misaligned = memoryview(bytearray(x.n_bytes + 1))[1:].cast("H", x.shape)
    with pytest.raises(ds41.InvalidArgumentError, match="need an address that is a multiple of 2"):
        ctx.prefill(0, seq, misaligned)


def test_a_step_wants_as_many_rows_as_it_has_tokens(ctx, seq, x):
    ctx.decode_prep([seq])
    with pytest.raises(ds41.InvalidShapeError, match="x"):
        ctx.decode_body(0, x)


def test_tensors_tell_what_they_are(case, x):
    assert x.dtype == ds41.Dtype.BF16 and x.shape == (12, case.config.dim) and x.n_bytes == 2 * 12 * case.config.dim
    assert not x.read_only and x.on_host and x.scales is None
    assert repr(x) == f"<ds41.Tensor BF16 [12, {case.config.dim}]>"
    lent = case["layers.0.attn.wq_a.weight"]
    assert lent.read_only and "read-only" in repr(lent)
    with pytest.raises(TypeError):
        memoryview(lent).cast("B")[0] = 1
    with pytest.raises((TypeError, BufferError)):
        io.BytesIO(bytes(lent.n_bytes)).readinto(lent)
    with pytest.raises(TypeError, match="source is a list"):
        ds41.Tensor([1, 2])


def test_bytes_stand_for_quantised_weights():
    codes, scales = memoryview(bytes(2048)).cast("B", (64, 32)), memoryview(bytes(2)).cast("B", (2, 1))
    tensor = ds41.Tensor(codes, "fp8_e4m3", scales=scales)
    assert tensor.dtype == ds41.Dtype.FP8_E4M3 and tensor.scale_shape == (2, 1)
    assert tensor.scales.dtype == ds41.Dtype.UE8M0 and tensor.scales.tobytes() == bytes(2)
    blocks = ds41.Tensor(memoryview(bytes(5 * 168)).cast("B", (5, 168)), ds41.Dtype.Q2_K)
    assert blocks.shape == (5, 512) and blocks.n_bytes == 840 and memoryview(blocks).shape == (5, 168)
    with pytest.raises(ds41.InvalidShapeError, match="rows of 85 bytes, need a multiple of 84"):
        ds41.Tensor(memoryview(bytes(85)).cast("B", (1, 85)), "q2_k")
    with pytest.raises(ds41.InvalidDtypeError, match="is BF16, need Q2_K or bytes"):
        ds41.Tensor(memoryview(bytes(168)).cast("H", (1, 84)), "q2_k")
    with pytest.raises(ds41.InvalidDtypeError, match="scales is BF16"):
        ds41.Tensor(memoryview(bytes(32)).cast("B", (1, 32)), "fp8_e4m3", scales=memoryview(bytes(2)).cast("H", (1, 1)))
    with pytest.raises(ds41.InvalidShapeError, match="scales has 1 dimensions, need 2"):
        ds41.Tensor(memoryview(bytes(32)).cast("B", (1, 32)), "fp8_e4m3", scales=bytes(1))


def test_scales_given_apart_are_those_of_the_file():
    """FP8 weights whose codes and scales come as arrays give the bits of the file's own tensors."""
    case = Case("e_fp8_weights")
    x = case.x(0, 0)
    expected = expected_of(case.model(), x)
    model = ds41.Model(case.config)
    for layer in case.layers:
        weights = case.weights(layer)
        for name, tensor in weights.items():
            if tensor.scales is not None:
                codes = memoryview(bytearray(tensor.tobytes())).cast("B", tensor.shape)
                scales = memoryview(bytearray(tensor.scales.tobytes())).cast("B", tensor.scale_shape)
                weights[name] = ds41.Tensor(codes, "fp8_e4m3", scales=scales)
        model.set_layer(layer, weights)
    assert expected_of(model, x) == expected
    plain = expected_of(case.model(plain_activations=True), x)
    assert plain != expected


class TestNumpy:
    @pytest.fixture(autouse=True)
    def np(self):
        self.np = pytest.importorskip("numpy")

    def test_a_numpy_input_gives_a_numpy_output(self, model, ctx, x):
        rows = self.np.array(x.numpy())
        out = ctx.prefill(0, ds41.Sequence(model), rows)
        assert type(out) is self.np.ndarray and out.dtype == rows.dtype and out.shape == rows.shape
        assert out.tobytes() == expected_of(model, x)

    def test_bfloat16_comes_and_goes(self, model, ctx, x):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        rows = x.numpy()
        assert rows.dtype == ml_dtypes.bfloat16
        assert ds41.Tensor(rows).dtype == ds41.Dtype.BF16 and ds41.Tensor(rows).address == x.address
        out = self.np.empty_like(rows)
        ctx.prefill(0, ds41.Sequence(model), rows, out=out)
        assert out.tobytes() == expected_of(model, x)
        buffer = ds41.Buffer(model, rows.nbytes)
        buffer.upload(rows)
        back = self.np.zeros_like(rows)
        assert buffer.download(back) is back and back.tobytes() == rows.tobytes()

    def test_ml_dtypes_of_weights(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        codes = self.np.ones((32, 64), ml_dtypes.float8_e4m3fn)
        scales = self.np.ones((1, 2), ml_dtypes.float8_e8m0fnu)
        tensor = ds41.Tensor(codes, scales=scales)
        assert tensor.dtype == ds41.Dtype.FP8_E4M3 and tensor.scales.dtype == ds41.Dtype.UE8M0
        with pytest.raises(ds41.InvalidDtypeError, match="need one of bfloat16"):
            ds41.Tensor(self.np.ones((2, 2), self.np.complex64))
        with pytest.raises(ds41.Error, match="DLPack|cannot be read"):
            ds41.Tensor(self.np.ones((2, 2), ml_dtypes.float8_e5m2))

    @pytest.mark.parametrize("make", [
        lambda np, rows: rows[:, ::2], lambda np, rows: np.asfortranarray(rows), lambda np, rows: rows[::-1],
        lambda np, rows: np.broadcast_to(rows[:1], rows.shape), lambda np, rows: rows.T,
    ])  # fmt: skip
    @pytest.mark.parametrize("bf16", [False, True])
    def test_arrays_that_are_not_contiguous(self, ctx, seq, x, make, bf16):
        rows = make(self.np, self.np.array(x.numpy() if bf16 else self.np.asarray(x)))
        with pytest.raises(ds41.InvalidArgumentError, match="x is not contiguous"):
            ctx.prefill(0, seq, rows)

    def test_dlpack_that_is_not_contiguous_or_of_another_dtype(self, model, ctx, seq, x):
        class NumpyDlpack:
            def __init__(self, array):
                self.__dlpack_device__ = array.__dlpack_device__
                self.__dlpack__ = array.__dlpack__

        rows = self.np.array(self.np.asarray(x))
        for wrong in (self.np.tile(rows, (2, 1))[::2], self.np.asfortranarray(rows)):
            with pytest.raises(ds41.InvalidArgumentError, match="x is not contiguous .* elements"):
                ctx.prefill(0, seq, NumpyDlpack(wrong))
        for dtype in ("float64", "int64", "complex64", "bool", "uint32"):
            with pytest.raises(ds41.InvalidDtypeError, match=f"x is {dtype}8?, need one of bfloat16"):
                ctx.prefill(0, seq, NumpyDlpack(rows.astype(dtype)))
        with pytest.raises(ds41.InvalidShapeError, match="x has 0 dimensions"):
            ctx.prefill(0, seq, NumpyDlpack(self.np.array(3, "uint16")))
        # One row lies the same way whatever its stride says.
        assert ctx.prefill(0, seq, NumpyDlpack(rows[:1].T.copy().T)).shape == (1, 64)

    @pytest.mark.parametrize("dtype, name", [("float32", "F32"), ("float16", "F16"), ("float64", "float64"),
                                             ("int16", "int16"), (">u2", "of format '>H'"), ("bool", "bool"),
                                             ("complex64", "complex64"), ("object", "of format 'O'")])  # fmt: skip
    def test_arrays_of_other_dtypes(self, ctx, seq, dtype, name):
        with pytest.raises(ds41.InvalidDtypeError, match=f"x is {name}"):
            ctx.prefill(0, seq, self.np.zeros((2, 64), dtype))

    def test_a_read_only_array_is_an_input_but_no_output(self, model, ctx, x):
        rows = self.np.array(x.numpy())
        rows.flags.writeable = False
        assert ctx.prefill(0, ds41.Sequence(model), rows).tobytes() == expected_of(model, x)
        with pytest.raises(ds41.InvalidArgumentError, match="out is read-only"):
            ctx.prefill(0, ds41.Sequence(model), rows, out=rows)

    def test_tensors_are_arrays_of_the_same_memory(self, model):
        buffer = ds41.Buffer(model, 64)
        for dtype, name in (("f32", "float32"), ("f16", "float16"), ("i32", "int32"), ("i8", "int8"), ("u8", "uint8"),
                            ("ue8m0", "uint8"), ("fp8_e4m3", "uint8")):  # fmt: skip
            tensor = buffer.tensor([2, 4], dtype)
            assert tensor.numpy().dtype == name and tensor.numpy().shape == (2, 4)
            tensor.numpy()[1, 3] = 1
            assert tensor.tobytes()[-tensor.n_bytes // 8 :] == tensor.numpy()[1, 3].tobytes()
            if dtype not in ("ue8m0", "fp8_e4m3"):
                taken = self.np.from_dlpack(tensor)
                assert taken.dtype == name and taken.ctypes.data == tensor.address
        assert ds41.Tensor(self.np.zeros((3, 4), "int32")).dtype == ds41.Dtype.I32
