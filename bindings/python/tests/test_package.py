"""The package as a whole: nothing of the header is forgotten, what it needs, how it is started, its types, leaks."""
import ctypes
import gc
import os
import pathlib
import re
import subprocess
import sys

import ds41
import pytest
from conftest import FIXTURES, ROOT, Case
from ds41 import _ds41
from ds41.__main__ import info
from ds41._file import RELEASE_NAMES
from test_config import members_of

PACKAGE = pathlib.Path(ds41.__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
# What Python has no use for: names and bytes that it knows itself, the sentence that each wrapper reads, and _init
# functions, which constructors call.
NOT_USED = {"ds41_status_name", "ds41_last_error", "ds41_dtype_name", "ds41_tensor_get_bytes"}


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=ENVIRONMENT, **options)


def test_every_function_of_the_header_is_used():
    functions = {name for name in dir(_ds41) if name.startswith("ds41_") and not isinstance(getattr(_ds41, name), type)}
    source = "".join(path.read_text() for path in PACKAGE.glob("*.py"))
    used = set(re.findall(r"_ds41\.(ds41_\w+)", source))
    assert functions - used == NOT_USED
    header = ROOT / "include" / "ds41" / "ds41.h"
    declared = set(re.findall(r"^DS41_API[^(]*?\b(ds41_\w+)\(", header.read_text(), flags=re.M))
    assert {name for name in declared - functions if not name.endswith("_init")} == set()


def test_constants_are_those_of_the_header():
    for prefix, cls in (("DS41_DTYPE_", ds41.Dtype), ("DS41_LOG_", ds41.LogLevel), ("DS41_TOPK_", ds41.TopkRule)):
        header = {name[len(prefix) :]: getattr(_ds41, name) for name in dir(_ds41) if name.startswith(prefix)}
        header.pop("NONE", None)
        assert header == {member.name: int(member) for member in cls}
    for dtype in ds41.Dtype:
        assert _ds41.ds41_dtype_name(dtype) == dtype.name
    assert members_of(_ds41.ds41_layer_weights) == {*RELEASE_NAMES, "ownership"}


def test_what_is_exported_is_there():
    assert sorted(ds41.__all__) == ds41.__all__
    assert all(hasattr(ds41, name) for name in ds41.__all__)
    public = {name for name, value in vars(ds41).items() if getattr(value, "__module__", "").startswith("ds41")}
    assert public <= set(ds41.__all__)


def test_versions_agree():
    assert ds41.__version__ == ds41.version() == _ds41.ds41_version()
    assert ds41.backends()[-1] == "reference"


def test_info_tells_what_there_is():
    done = python("-m", "ds41", "info")
    assert done.returncode == 0, done.stderr
    assert f"libds41 {ds41.version()}" in done.stdout and "CPUs" in done.stdout
    assert re.search(r"^NVIDIA devices: \S.*$", done.stdout, flags=re.M)
    for name in ds41.backends():
        assert re.search(rf"backend {name}: (runs here|does not run here: .+)", done.stdout)
    assert re.search(r"^backend cpu: runs here, instruction sets .*EMU128$", done.stdout, flags=re.M)
    assert python("-m", "ds41").returncode == 2


@pytest.mark.parametrize("target", [None, "EMU128"])
def test_info_leaves_the_environment_as_it_was(monkeypatch, target):
    monkeypatch.delenv("DS41_CPU_TARGET", raising=False)
    if target:
        monkeypatch.setenv("DS41_CPU_TARGET", target)
    lines = info()
    assert os.environ.get("DS41_CPU_TARGET") == target
    assert any("DS41_CPU_TARGET is set: EMU128" in line for line in lines) == (target is not None)


def test_the_package_works_without_numpy():
    code = f"""
import sys
for name in ("numpy", "ml_dtypes"):
    sys.modules[name] = None
import ds41
file = ds41.File({str(FIXTURES / "a_golden_stable.safetensors")!r})
model = ds41.Model(ds41.Config.parse(file.metadata("config")))
model.set_layer(0, file.layer_weights(0))
x = memoryview(bytearray(12 * 64 * 2)).cast("H", (12, 64))
print(ds41.Context(model).prefill(0, ds41.Sequence(model), x))
"""
    done = python("-c", code)
    assert done.stdout == "<ds41.Tensor BF16 [12, 64]>\n", done.stderr


def test_importing_the_package_does_not_import_numpy():
    done = python("-c", "import sys, ds41; print('numpy' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_nothing_is_said_at_exit_whatever_is_left():
    """Objects that live until the end of the process, of which some are in cycles."""
    code = f"""
import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import ds41
from conftest import Case
case = Case("a_golden_stable")
model = case.model(log=lambda level, message: None)
ctx, seq = ds41.Context(model, n_threads=2), ds41.Sequence(model)
ctx.set_tap(lambda tap: (ctx, seq))
out = ctx.prefill(0, seq, case.x(0, 0))
buffer = ds41.Buffer(model, 64); view = memoryview(buffer.tensor([32])); capsule = buffer.tensor([32]).__dlpack__()
ds41.forever = [model, ctx, seq, out, buffer, view, capsule]
"""
    done = python("-X", "dev", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_examples_pass_a_strict_type_check(tmp_path):
    pytest.importorskip("mypy")
    pytest.importorskip("numpy")
    for example in sorted((ROOT / "examples" / "python").glob("*.py")):
        done = python("-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(example), cwd=tmp_path)
        assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import ds41\nn: str = ds41.Config().dim\nds41.Model(3)\nds41.Context.prefil\n"
                     "def f(ctx: ds41.Context) -> None:\n    with ctx.capture() as graph:\n        graph.lunch()\n")
    done = python("-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(wrong), cwd=tmp_path)
    assert len(re.findall("error:", done.stdout)) == 4, done.stdout


def test_the_lines_in_the_readme_run():
    readme = pathlib.Path(os.environ.get("DS41_README", ROOT / "README.md")).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, flags=re.S | re.M)
    assert blocks
    pytest.importorskip("ml_dtypes")
    for block in blocks:
        done = python("-c", block, cwd=ROOT)
        assert done.returncode == 0 and done.stdout, done.stderr


class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def n_malloc_bytes():
    """Bytes that malloc has given out; 0 where the C library does not tell."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return 0
    mallinfo2.restype = Mallinfo
    told = mallinfo2()
    return told.uordblks + told.hblkhd


def assert_no_growth(everything, in_use, n_rounds):
    """What `in_use` counts (blocks, bytes of malloc, and so on) grows by less than half a thing or 8 bytes a round.

    A leak shows every time; what the interpreter and malloc keep for themselves does not."""
    limits = [n_rounds * 8 if i == 1 else n_rounds / 2 for i in range(len(in_use()))]
    measured = []
    for _ in range(2):
        everything()
    while len(measured) < 10:
        before = in_use()
        for _ in range(n_rounds):
            everything()
        measured.append([after - then for after, then in zip(in_use(), before)])
        if all(n < limit for n, limit in zip(measured[-1], limits)):
            return
    raise AssertionError(f"in {n_rounds} rounds each: {measured}, need once less than {limits}")


def test_nothing_leaks(tmp_path):
    """What is done over and over, well and wrongly, leaves neither Python's memory nor the C library's behind."""
    case = Case("a_golden_stable")
    model = case.model()
    ctx, seq, x = ds41.Context(model, n_threads=1), ds41.Sequence(model), case.x(0, 0)
    strided = memoryview(bytearray(24 * 64 * 2)).cast("H", (24, 64))[::2]
    options = _ds41.ds41_model_options()

    def attempt(call):
        try:
            call()
        except (ds41.Error, TypeError):
            pass

    def everything():
        for call in (
            lambda: ds41.Model(case.config, backend="abacus"),
            lambda: ds41.Model(case.config, log=lambda *_: None),
            lambda: setattr(options, "backend", "a name that is set again"),
            lambda: ds41.Config.parse("{"),
            lambda: ds41.Config.load(tmp_path / "x"),
            lambda: case.config.copy().role(1),
            lambda: setattr(case.config.copy(), "compress_ratios", [1] * 300),
            lambda: ds41.File(case.paths[0])["layers.0.attn.wq_a.weight"].__dlpack__(max_version=(1, 0)),
            lambda: ds41.Sequence(model).reserve(8),
            lambda: ds41.Buffer(model, 4096).tensor([8, 8]).__dlpack__(),
            lambda: ds41.Buffer(model, 4096).upload(bytes(4097)),
            lambda: ds41.Tensor(ds41.Buffer(model, 4096).tensor([8, 8])),
            lambda: _ds41.TensorView(0, int(ds41.Dtype.BF16), [1, 1], None),
            lambda: ctx.prefill(0, seq, strided),
            lambda: ctx.prefill(0, seq, x, start_pos=7),
            lambda: ctx.set_tap(lambda tap: None, ["q", "o"]),
            lambda: ctx.set_tap(print, ["q", "nothing"]),
            lambda: ctx.decode_prep([(seq, 1, 99)]),
            lambda: ctx.decode_prep([(seq, 1, 0), (seq, "x", 0)]),
            lambda: (seq.reset(), ctx.prefill(0, seq, x)),
        ):
            attempt(call)

    def in_use():
        gc.collect()
        types = sum(sys.getrefcount(cls) for cls in (ds41.Tensor, _ds41.TensorView))
        return sys.getallocatedblocks(), n_malloc_bytes(), types

    assert_no_growth(everything, in_use, n_rounds=150)
