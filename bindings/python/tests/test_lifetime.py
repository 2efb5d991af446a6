"""Closing: in any order, twice, during a call, by the garbage collector; and what is kept alive until then."""
import gc
import os
import signal
import struct
import threading
import time
import warnings
import weakref

import ds41
import pytest
from conftest import Case
from ds41._context import _destroyer


class Memory(bytearray):
    """Memory that can be watched."""


def watched(tensor):
    """A copy of a tensor's memory as an array, and a weak reference to what owns it."""
    owner = Memory(tensor.tobytes())
    format_ = memoryview(tensor).format
    return memoryview(owner).cast(format_, memoryview(tensor).shape), weakref.ref(owner)


def family(case):
    model = case.model()
    return {"model": model, "ctx": ds41.Context(model, n_threads=2), "seq": ds41.Sequence(model),
            "buffer": ds41.Buffer(model, 64), "file": ds41.File(case.paths[0])}  # fmt: skip


@pytest.mark.parametrize("order", ["model ctx seq buffer file", "file buffer seq ctx model",
                                   "ctx model seq", "seq ctx"])  # fmt: skip
def test_objects_close_in_any_order_and_twice(case, x, order):
    objects = family(case)
    objects["ctx"].prefill(0, objects["seq"], x)
    for name in order.split() * 2:
        objects[name].close()
        assert objects[name].closed
        assert "closed" in repr(objects[name])


def test_children_work_when_their_parent_is_closed(case, x):
    expected = (lambda o: o["ctx"].prefill(0, o["seq"], x))(family(case)).tobytes()
    objects = family(case)
    objects["model"].close()
    del objects["model"]
    gc.collect()
    assert objects["ctx"].prefill(0, objects["seq"], x).tobytes() == expected
    objects["buffer"].upload(b"12345678")
    assert objects["buffer"].download(n_bytes=8) == b"12345678"


@pytest.mark.parametrize("use", [
    lambda o, x: o["model"].config,
    lambda o, x: o["model"].backend,
    lambda o, x: o["model"].set_layer(0, {}),
    lambda o, x: o["model"].estimate_memory(),
    lambda o, x: ds41.Context(o["model"]),
    lambda o, x: ds41.Sequence(o["model"]),
    lambda o, x: ds41.Buffer(o["model"], 1),
    lambda o, x: o["ctx"].prefill(0, o["seq"], x),
    lambda o, x: o["ctx"].decode_prep([o["seq"]]),
    lambda o, x: o["ctx"].decode_body(0, x),
    lambda o, x: o["ctx"].decode_capturable(0),
    lambda o, x: o["ctx"].set_tap(None),
    lambda o, x: o["ctx"].synchronize(),
    lambda o, x: o["ctx"].n_bytes,
    lambda o, x: o["ctx"].__enter__(),
    lambda o, x: o["seq"].position(),
    lambda o, x: o["seq"].reset(),
    lambda o, x: o["seq"].reserve(1),
    lambda o, x: o["seq"].n_bytes,
    lambda o, x: o["buffer"].n_bytes,
    lambda o, x: o["buffer"].address,
    lambda o, x: o["buffer"].upload(b"1"),
    lambda o, x: o["buffer"].download(),
    lambda o, x: o["buffer"].tensor([1]),
    lambda o, x: o["file"]["x"],
    lambda o, x: len(o["file"]),
    lambda o, x: list(o["file"]),
    lambda o, x: o["file"].metadata("x"),
    lambda o, x: o["file"].layer_weights(0),
])  # fmt: skip
def test_use_after_close_says_so(case, x, use):
    objects = family(case)
    for value in objects.values():
        value.close()
    with pytest.raises(ds41.ClosedError, match="the (Model|Context|Sequence|Buffer|File) is closed"):
        use(objects, x)


def test_a_closed_sequence_is_named(model, ctx, seq, x):
    seq.close()
    with pytest.raises(ds41.ClosedError, match="the Sequence is closed"):
        ctx.prefill(0, seq, x)


def test_context_managers_close(case):
    with ds41.File(case.paths[0]) as file, case.model() as model, ds41.Context(model) as ctx:
        assert not (file.closed or model.closed or ctx.closed)
    assert file.closed and model.closed and ctx.closed


def test_native_objects_go_with_their_last_user(case):
    objects = family(case)
    handles = {name: weakref.ref(value._handle) for name, value in objects.items()}
    objects["model"].close()
    assert handles["model"]() is not None  # the children's parent
    for name in ("ctx", "seq", "buffer", "file"):
        objects[name].close()
        assert handles[name]() is None
    assert handles["model"]() is None


def test_borrowed_weights_live_as_long_as_anybody_computes_with_them(case, x):
    model = ds41.Model(case.config)
    references = []
    for layer in case.layers:
        weights = {}
        for name, tensor in case.weights(layer).items():
            weights[name], reference = watched(tensor)
            references.append(reference)
        model.set_layer(layer, weights, borrow=True)
        del weights
    ctx, seq = ds41.Context(model), ds41.Sequence(model)
    model.close()
    gc.collect()
    assert all(reference() is not None for reference in references)
    ctx.prefill(0, seq, x)
    seq.close()
    assert references[0]() is not None
    ctx.close()
    gc.collect()
    assert all(reference() is None for reference in references)


def test_borrowed_weights_take_no_memory_of_the_model(case):
    assert case.model(borrow=True).estimate_memory().weights < case.model().estimate_memory().weights / 2


def test_copied_and_replaced_weights_are_let_go(case):
    model = ds41.Model(case.config)
    for borrow, stays in ((False, False), (True, True), (False, False)):
        weights, references = {}, []
        for name, tensor in case.weights(0).items():
            weights[name], reference = watched(tensor)
            references.append(reference)
        model.set_layer(0, weights, borrow=borrow)
        del weights
        gc.collect()
        assert all((reference() is not None) == stays for reference in references)
        kept = references
    assert all(reference() is None for reference in kept)


def test_a_view_keeps_a_closed_buffer(model):
    buffer = ds41.Buffer(model, 256)
    handle = weakref.ref(buffer._handle)
    buffer.upload(bytes(range(256)))
    tensor = buffer.tensor([8, 16])
    view = memoryview(tensor)
    buffer.close()
    del tensor
    model.close()
    gc.collect()
    assert handle() is not None
    assert view.tobytes() == bytes(range(256))
    del view
    assert handle() is None


def test_a_tensor_keeps_a_closed_file(case):
    file = ds41.File(case.paths[0])
    handle = weakref.ref(file._handle)
    tensor = file["layers.0.attn.wq_a.weight"]
    expected = tensor.tobytes()
    file.close()
    gc.collect()
    assert tensor.tobytes() == expected
    del tensor
    assert handle() is None


def test_a_numpy_array_keeps_a_closed_file(case):
    pytest.importorskip("numpy")
    file = ds41.File(case.paths[0])
    handle = weakref.ref(file._handle)
    array = file["layers.0.attn.attn_sink"].numpy()
    file.close()
    gc.collect()
    assert handle() is not None and array.sum() is not None
    del array
    assert handle() is None


def test_dlpack_keeps_its_owner():
    numpy = pytest.importorskip("numpy")
    owner = Memory(64)
    reference = weakref.ref(owner)
    tensor = ds41.Tensor(memoryview(owner).cast("f", [4, 4]))
    array = numpy.from_dlpack(tensor)
    capsule = tensor.__dlpack__()
    del owner, tensor
    gc.collect()
    reference()[20:24] = struct.pack("f", 3.0)
    assert array[1, 1] == 3.0
    del array
    assert reference() is not None
    del capsule  # nobody took it
    assert reference() is None


def test_the_log_lives_as_long_as_the_children(case):
    class Log:
        def __call__(self, level, message):
            pass

    log = Log()
    reference = weakref.ref(log)
    model = ds41.Model(case.config, log=log)
    seq = ds41.Sequence(model)
    del log
    model.close()
    gc.collect()
    assert reference() is not None
    seq.close()
    gc.collect()
    assert reference() is None


def test_a_tap_is_let_go_when_it_is_replaced(ctx, seq, x):
    class Tap:
        n = 0

        def __call__(self, tap):
            Tap.n += 1

    tap = Tap()
    reference = weakref.ref(tap)
    ctx.set_tap(tap, ["o"])
    del tap
    gc.collect()
    ctx.prefill(0, seq, x)
    assert Tap.n == 1
    ctx.set_tap(None)
    assert reference() is None
    ctx.prefill(1, seq, x)
    assert Tap.n == 1


def test_cycles_are_collected(case, x):
    model = case.model()
    ctx, seq = ds41.Context(model), ds41.Sequence(model)
    handles = [weakref.ref(value._handle) for value in (model, ctx, seq)]
    ctx.set_tap(lambda tap: (ctx, seq, model))
    ctx.prefill(0, seq, x)
    del model, ctx, seq
    gc.collect()
    assert [handle() for handle in handles] == [None] * 3


def test_closing_everything_during_a_call_is_safe(case, x):
    expected = case.model()
    expected = ds41.Context(expected, n_threads=1).prefill(0, ds41.Sequence(expected), x).tobytes()
    model = case.model()
    ctx, seq = ds41.Context(model, n_threads=1), ds41.Sequence(model)
    handles = [weakref.ref(value._handle) for value in (model, ctx, seq)]

    def close(tap):
        for value in (seq, ctx, model):
            thread = threading.Thread(target=value.close)
            thread.start()
            thread.join()

    ctx.set_tap(close, ["q"])
    assert ctx.prefill(0, seq, x).tobytes() == expected
    assert ctx.closed and seq.closed and model.closed
    gc.collect()
    assert [handle() for handle in handles] == [None] * 3


def test_destruction_waits_for_a_call_that_has_found_the_sequence(seq):
    """As decode_body() does, which finds the sequences of its step by weak references."""
    thread = threading.Thread(target=seq.close)
    with seq._handle.lock:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join()


def test_a_step_ends_with_its_sequence(case, model, ctx):
    seqs = [ds41.Sequence(model) for _ in range(2)]
    ctx.decode_prep(seqs)
    rows = memoryview(case.x(0, 0))[:2]
    ctx.decode_body(0, rows)
    handle = weakref.ref(seqs[0]._handle)
    seqs[0].close()
    assert handle() is None  # a step does not keep it
    with pytest.raises(ds41.WrongOrderError, match="over"):
        ctx.decode_body(1, rows)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_may_let_go():
    """A context's threads are not in the child: it neither waits for them nor computes without them."""
    case = Case("c_production_heads")  # whose steps are long enough for threads
    model, x = case.model(), case.x(0, 0)
    ctx, seq = ds41.Context(model, n_threads=2), ds41.Sequence(model)
    ctx.prefill(0, seq, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                ctx.prefill(1, seq, x)
            except ds41.WrongOrderError:
                status = 0
            ctx.close()
            seq.close()
            model.close()
        finally:
            os._exit(status)
    for _ in range(200):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.05)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("the child waits for threads that it does not have")
    assert status == 0
    ctx.prefill(1, seq, x)


def test_a_context_is_destroyed_in_its_own_process_only(monkeypatch):
    destroyed = []
    monkeypatch.setattr("ds41._ds41.ds41_ctx_destroy", destroyed.append)
    _destroyer(os.getpid())(1)
    _destroyer(os.getpid() + 1)(2)
    assert destroyed == [1]
