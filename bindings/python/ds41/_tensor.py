"""Arrays of any library as tensors, and tensors for any library, without a copy.

What comes in is checked here, before the native library sees an address: dtype, order, device, whether it may be
written. numpy is not needed; where it is there, its arrays come in by the buffer protocol, bfloat16 ones of ml_dtypes
by their bits.
"""
from __future__ import annotations

import enum
import sys
from typing import Any, NamedTuple, Optional, Sequence as Seq, Tuple, Union

from . import _ds41
from ._errors import InvalidArgumentError, InvalidDtypeError, InvalidShapeError, UnsupportedError


class Dtype(enum.IntEnum):
    """Element type of a tensor."""

    F32 = _ds41.DS41_DTYPE_F32
    BF16 = _ds41.DS41_DTYPE_BF16
    FP8_E4M3 = _ds41.DS41_DTYPE_FP8_E4M3
    Q2_K = _ds41.DS41_DTYPE_Q2_K
    I32 = _ds41.DS41_DTYPE_I32
    U8 = _ds41.DS41_DTYPE_U8
    I8 = _ds41.DS41_DTYPE_I8
    F16 = _ds41.DS41_DTYPE_F16
    UE8M0 = _ds41.DS41_DTYPE_UE8M0


MAX_DIMS: int = _ds41.DS41_MAX_DIMS
_Q2_K_VALUES = 256  # of a block
_Q2_K_BYTES = 84  # of a block

# DLPack's device types.
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
# Backends with memory of a device; that of the simulated one, which tests take, is as far from the host's as a GPU's.
DEVICE_BACKENDS = ("cuda", "sim")
_HOST_DEVICES = (CPU, CUDA_HOST)
_CUDA_DEVICES = (CUDA, CUDA_HOST, CUDA_MANAGED)
_DEVICE_NAMES = {CUDA: "CUDA device", CUDA_MANAGED: "CUDA device", 8: "Metal device", 10: "ROCm device"}

# By the struct module's format and size. 16 unsigned bits are those of a bf16: no tensor holds other ones.
_OF_FORMAT = {
    ("f", 4): Dtype.F32, ("e", 2): Dtype.F16, ("H", 2): Dtype.BF16, ("i", 4): Dtype.I32, ("l", 4): Dtype.I32,
    ("B", 1): Dtype.U8, ("c", 1): Dtype.U8, ("b", 1): Dtype.I8,
}  # fmt: skip
_FORMAT_NAMES = {
    "d": "float64", "g": "longdouble", "h": "int16", "q": "int64", "l": "int64", "Q": "uint64", "L": "uint64",
    "I": "uint32", "?": "bool", "Zf": "complex64", "Zd": "complex128",
}  # fmt: skip
# By DLPack's code and bits.
_OF_DLPACK = {
    (2, 32): Dtype.F32, (2, 16): Dtype.F16, (4, 16): Dtype.BF16, (1, 16): Dtype.BF16, (0, 32): Dtype.I32,
    (1, 8): Dtype.U8, (0, 8): Dtype.I8, (10, 8): Dtype.FP8_E4M3, (14, 8): Dtype.UE8M0,
}  # fmt: skip
_DLPACK_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
# numpy dtypes that the buffer protocol cannot describe, by name: what they are, and a dtype with the same bits.
_OF_NAME = {
    "bfloat16": (Dtype.BF16, "uint16"),
    "float8_e4m3fn": (Dtype.FP8_E4M3, "uint8"),
    "float8_e8m0fnu": (Dtype.UE8M0, "uint8"),
}
# Bytes may be given for these.
_IN_BYTES = (Dtype.FP8_E4M3, Dtype.Q2_K, Dtype.UE8M0, Dtype.I8)


class _Source(NamedTuple):
    address: int
    dtype: Dtype
    shape: Tuple[int, ...]
    owner: Any
    read_only: bool
    device: Tuple[int, int]


def _of_memoryview(view: memoryview, dtype: Optional[Dtype], what: str) -> _Source:
    form = view.format.lstrip("@=<")
    found = _OF_FORMAT.get((form, view.itemsize))
    if found is None:
        name = _FORMAT_NAMES.get(form, f"of format {view.format!r}")
        raise InvalidDtypeError(f"{what} is {name}, need one of bfloat16 (or uint16 with its bits), float32, float16, "
                                "int32, int8 and uint8")  # fmt: skip
    if not view.c_contiguous:
        raise InvalidArgumentError(
            f"{what} is not contiguous (shape {view.shape}, strides {view.strides} bytes), need row-major order "
            "without gaps"
        )
    shape = view.shape or ()
    return _Source(_ds41.address_of(view), dtype or found, shape, view, view.readonly, (CPU, 0))


def _device_name(device: Tuple[int, int]) -> str:
    return f"{_DEVICE_NAMES.get(device[0], f'device type {device[0]} (of DLPack), number')} {device[1]}"


def _of_dlpack(value: Any, what: str, backend: str) -> _Source:
    device_type, device_id = value.__dlpack_device__()
    device = (int(device_type), int(device_id))
    if device[0] not in _HOST_DEVICES and not (backend in DEVICE_BACKENDS and device[0] in _CUDA_DEVICES):
        need = f"backend {backend} computes with" if backend else "this place needs"
        raise UnsupportedError(f"{what} is on {_device_name(device)}, {need} tensors in host memory")
    try:
        try:
            capsule = value.__dlpack__(max_version=(1, 1))
        except TypeError:  # written before DLPack 1.0
            capsule = value.__dlpack__()
        owner, address, device, (code, bits, lanes), shape, strides, read_only = _ds41.take_dlpack(capsule)
    except BufferError as error:
        raise InvalidArgumentError(f"{what} cannot be taken by DLPack: {error}") from error
    dtype = _OF_DLPACK.get((code, bits)) if lanes == 1 else None
    if dtype is None:
        raise InvalidDtypeError(f"{what} is {_DLPACK_NAMES.get(code, f'of DLPack code {code},')}{bits}, need one of "
                                "bfloat16, float32, float16, int32, int8 and uint8")  # fmt: skip
    if strides is not None:
        expected = 1
        for size, stride in zip(reversed(shape), reversed(strides)):
            if size != 1 and stride != expected and 0 not in shape:
                raise InvalidArgumentError(f"{what} is not contiguous (shape {shape}, strides {strides} elements), "
                                           "need row-major order without gaps")  # fmt: skip
            expected *= size
    return _Source(address, dtype, shape, owner, read_only, device)


def _source(value: Any, what: str, backend: str) -> _Source:
    if isinstance(value, _ds41.TensorView):
        return _Source(value.address, Dtype(value.dtype_code), value.shape, value, value.read_only,
                       value.__dlpack_device__())  # fmt: skip
    if isinstance(value, (str, list, tuple)) or value is None:
        raise TypeError(f"{what} is a {type(value).__name__}, need an array: a ds41.Tensor, or an object with the "
                        "buffer protocol or __dlpack__")  # fmt: skip
    known: Optional[Dtype] = None
    array = value
    if hasattr(type(value), "__array_interface__"):
        name = getattr(getattr(value, "dtype", None), "name", "")
        if name in _OF_NAME:
            known, bits = _OF_NAME[name]
            array = value.view(bits)
    try:
        view = memoryview(array)
    except (TypeError, ValueError, BufferError) as error:
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return _of_dlpack(value, what, backend)
        if isinstance(error, TypeError):
            raise TypeError(f"{what} is a {type(value).__name__}, need an array: a ds41.Tensor, or an object with the "
                            "buffer protocol or __dlpack__") from None  # fmt: skip
        raise InvalidDtypeError(f"{what} cannot be read: {error}") from None
    return _of_memoryview(view, known, what)


def dtype_of(value: Union[Dtype, str, int]) -> Dtype:
    """A Dtype by itself, its number or its name in any case."""
    try:
        return Dtype[value.upper()] if isinstance(value, str) else Dtype(value)
    except (KeyError, ValueError):
        names = ", ".join(dtype.name for dtype in Dtype)
        raise InvalidDtypeError(f"dtype is {value!r}, need one of {names}") from None


class Tensor(_ds41.TensorView):
    """Memory of another object with a dtype and a shape. Keeps the object alive; nothing is copied.

    It has the buffer protocol (`memoryview(tensor)`, `numpy.asarray(tensor)`; bf16 as uint16) and DLPack
    (`torch.from_dlpack(tensor)`); `numpy()` gives an array of the right dtype.

    source: an array of any library: the buffer protocol (numpy, array.array, bytearray, memoryview) or DLPack.
    dtype: what bytes stand for: FP8_E4M3, UE8M0, I8, or Q2_K ([rows, cols / 256 * 84] bytes; `shape` counts values).
    scales: of FP8_E4M3, the UE8M0 bytes [ceil(rows / 32), cols / 32].
    plain_activations: multiply quantised weights with the bf16 activations as they are.
    """

    def __new__(
        cls,
        source: Any,
        dtype: Union[Dtype, str, None] = None,
        scales: Any = None,
        plain_activations: bool = False,
    ) -> "Tensor":
        made: Tensor = _make(cls, "Tensor: source", source, dtype, scales, plain_activations, "")
        return made

    @property
    def dtype(self) -> Dtype:
        return Dtype(self.dtype_code)

    @property
    def on_host(self) -> bool:
        """Whether the memory is the host's."""
        return self.__dlpack_device__()[0] in _HOST_DEVICES

    @property
    def scales(self) -> Optional["Tensor"]:
        """The scales of FP8_E4M3 as a tensor of their own."""
        shape = self.scale_shape
        if shape is None:
            return None
        made: Tensor = _new(Tensor, _Source(self.scales_address, Dtype.UE8M0, shape, self.scale_owner, True,
                                            self.__dlpack_device__()))  # fmt: skip
        return made

    def numpy(self) -> Any:
        """A numpy array of the same memory: ml_dtypes.bfloat16 where ml_dtypes is installed, uint16 otherwise. Codes of
        FP8_E4M3, UE8M0 and Q2_K are bytes."""
        import numpy

        array = numpy.asarray(self)
        if self.dtype_code == Dtype.BF16:
            try:
                import ml_dtypes
            except ImportError:
                return array
            array = array.view(ml_dtypes.bfloat16)
        return array

    def tobytes(self) -> bytes:
        """A copy of the elements."""
        return memoryview(self).tobytes()

    def __repr__(self) -> str:
        return f"<ds41.Tensor {self.dtype.name} {list(self.shape)}{', read-only' if self.read_only else ''}>"


def _new(cls: Any, source: _Source, scales: Any = None, scale_shape: Any = None, scale_owner: Any = None,
         flags: int = 0) -> Any:  # fmt: skip
    return _ds41.TensorView.__new__(
        cls, source.address, int(source.dtype), source.shape, source.owner, source.read_only, scales, scale_shape,
        scale_owner, source.device[0], source.device[1], flags,
    )  # fmt: skip


def _make(cls: Any, what: str, value: Any, dtype: Union[Dtype, str, None], scales: Any, plain_activations: bool,
          backend: str) -> Any:  # fmt: skip
    source = _source(value, what, backend)
    if not 1 <= len(source.shape) <= MAX_DIMS:
        raise InvalidShapeError(f"{what} has {len(source.shape)} dimensions, need 1 to {MAX_DIMS}")
    if dtype is not None:
        wanted = dtype_of(dtype)
        if wanted != source.dtype:
            if source.dtype != Dtype.U8 or wanted not in _IN_BYTES:
                raise InvalidDtypeError(f"{what} is {source.dtype.name}, need {wanted.name}"
                                        f"{' or bytes (uint8)' if wanted in _IN_BYTES else ''}")  # fmt: skip
            shape = source.shape
            if wanted == Dtype.Q2_K:
                if shape[-1] % _Q2_K_BYTES != 0:
                    raise InvalidShapeError(f"{what} has rows of {shape[-1]} bytes, need a multiple of {_Q2_K_BYTES}: "
                                            f"Q2_K blocks of {_Q2_K_VALUES} values")  # fmt: skip
                shape = (*shape[:-1], shape[-1] // _Q2_K_BYTES * _Q2_K_VALUES)
            source = source._replace(dtype=wanted, shape=shape)
    flags = _ds41.DS41_TENSOR_PLAIN_ACTIVATIONS if plain_activations else 0
    if isinstance(value, _ds41.TensorView):
        flags |= value.flags
        if scales is None and value.scale_shape is not None:
            return _new(cls, source, value.scales_address, value.scale_shape, value.scale_owner, flags)
    if scales is None:
        return _new(cls, source, flags=flags)
    codes = _source(scales, "Tensor: scales", backend)
    if codes.dtype not in (Dtype.U8, Dtype.UE8M0):
        raise InvalidDtypeError(f"Tensor: scales is {codes.dtype.name}, need UE8M0 or bytes (uint8)")
    if len(codes.shape) != 2:
        raise InvalidShapeError(f"Tensor: scales has {len(codes.shape)} dimensions, need 2")
    return _new(cls, source, codes.address, codes.shape, codes.owner, flags)


def as_tensor(value: Any, function: str, argument: str, backend: str = "") -> Tensor:
    """Any array as a tensor; tensors as they are."""
    if isinstance(value, Tensor) and (value.on_host or backend in DEVICE_BACKENDS):
        return value
    made: Tensor = _make(Tensor, f"{function}: {argument}", value, None, None, False, backend)
    if not made.on_host and backend not in DEVICE_BACKENDS:
        raise UnsupportedError(f"{function}: {argument} is on {_device_name(made.__dlpack_device__())}, backend "
                               f"{backend} computes with tensors in host memory")  # fmt: skip
    return made


def as_rows(value: Any, function: str, argument: str, width: int, backend: str) -> Tensor:
    """Activations: bf16 [n, width]."""
    tensor = as_tensor(value, function, argument, backend)
    if tensor.dtype_code != Dtype.BF16:
        raise InvalidDtypeError(f"{function}: {argument} is {tensor.dtype.name}, need BF16 (bfloat16, or uint16 with "
                                "its bits)")  # fmt: skip
    shape = tensor.shape
    if len(shape) != 2 or shape[0] < 1 or shape[1] != width:
        raise InvalidShapeError(f"{function}: {argument} has shape {list(shape)}, need [n, {width}] with n of 1 or "
                                "more (dim of the model)")  # fmt: skip
    return tensor


def as_output(value: Any, x: Tensor, function: str, backend: str) -> Tensor:
    """Where the result of x goes: bf16 of its shape, writable."""
    tensor = as_rows(value, function, "out", x.shape[1], backend)
    if tensor.shape != x.shape:
        raise InvalidShapeError(f"{function}: out has shape {list(tensor.shape)}, need {list(x.shape)} (that of x)")
    if tensor.read_only:
        raise InvalidArgumentError(f"{function}: out is read-only")
    return tensor


def empty_like(value: Any, tensor: Tensor) -> Any:
    """Room for a result: a numpy array for one, a Tensor of new host memory for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return numpy.empty(tensor.shape, value.dtype)
    return host_tensor(bytearray(tensor.n_bytes), tensor.dtype, tensor.shape)


def host_tensor(data: Any, dtype: Dtype, shape: Seq[int]) -> Tensor:
    """The bytes of a buffer as a tensor."""
    view = memoryview(data).cast("B")
    made: Tensor = _new(Tensor, _Source(_ds41.address_of(view), dtype, tuple(shape), view, view.readonly, (CPU, 0)))
    return made


def lent_tensor(described: Tuple[int, int, int, Tuple[int, ...], Tuple[int, int]], owner: Any) -> Tensor:
    """A read-only tensor that the library lends, of memory that `owner` keeps."""
    address, scales, dtype, shape, scale_shape = described
    source = _Source(address, Dtype(dtype), shape, owner, True, (CPU, 0))
    if scales == 0:
        made: Tensor = _new(Tensor, source)
    else:
        made = _new(Tensor, source, scales, scale_shape, owner)
    return made


def device_tensor(address: int, dtype: Dtype, shape: Tuple[int, ...], owner: Any, device: Tuple[int, int]) -> Tensor:
    """A writable tensor of memory that the library has allocated."""
    made: Tensor = _new(Tensor, _Source(address, dtype, shape, owner, False, device))
    return made


def as_bytes(value: Any, function: str, argument: str, writable: bool) -> Any:
    """The memory of any contiguous array, whatever it holds, as something with the buffer protocol."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        view = memoryview(as_tensor(value, function, argument))
    if not view.c_contiguous:
        raise InvalidArgumentError(f"{function}: {argument} is not contiguous (shape {view.shape}, strides "
                                   f"{view.strides} bytes), need row-major order without gaps")  # fmt: skip
    if writable and view.readonly:
        raise InvalidArgumentError(f"{function}: {argument} is read-only")
    return view
