"""Captured decode steps: refused on host backends; on a simulated device the bits of the layers one by one, what is
refused when, and what is kept alive. DS41_TEST_PLUGINS names the folder of the simulated device."""
import array
import contextlib
import gc
import os
import pathlib
import random
import subprocess
import sys
import threading
import weakref

import ds41
import pytest
from conftest import FIXTURES, ROOT, SMALL, Case
from ds41 import _ds41
from ds41._graph import captured_handle
from test_package import assert_no_growth, n_malloc_bytes
from test_round_trip import assert_golden
from test_threads import in_thread

PLUGINS = os.environ.get("DS41_TEST_PLUGINS")
on_device = pytest.mark.skipif(
    not PLUGINS, reason="DS41_TEST_PLUGINS names no folder with a simulated device, on which graphs are tested"
)


@pytest.fixture(scope="module")
def sim(case):
    """A model on the simulated device, whose library is looked for at its first use."""
    before = os.environ.get("DS41_PLUGIN_PATH")
    os.environ["DS41_PLUGIN_PATH"] = PLUGINS
    try:
        return case.model(backend="sim")
    finally:
        if before is None:
            del os.environ["DS41_PLUGIN_PATH"]
        else:
            os.environ["DS41_PLUGIN_PATH"] = before


def rows_of(case, name, layer, position, n_tokens):
    """Input rows, the same for sequences of the same name at the same place."""
    data = array.array("H")
    for at in range(position, position + n_tokens):
        values = random.Random(f"{name} {layer} {at}")
        data.extend(values.randrange(0x3E00, 0x3F80) | values.randrange(2) << 15 for _ in range(case.config.dim))
    return data.tobytes()


class Scene:
    """A context and device memory for x and out of each layer, at addresses that stay."""

    def __init__(self, case, model, n_rows=1, ctx=None, **options):
        self.case, self.model, self.n_rows = case, model, n_rows
        self.ctx = ctx or ds41.Context(model, **options)
        self.row_bytes = 2 * case.config.dim
        self.x, self.out = ([ds41.Buffer(model, n_rows * self.row_bytes) for _ in case.layers] for _ in range(2))
        for buffer in (*self.x, *self.out):
            buffer.upload(b"\xc1\x7f" * (buffer.n_bytes // 2))  # NaN behind the rows of a step

    def tensors(self, layer, n_rows=None):
        shape = (n_rows or self.n_rows, self.case.config.dim)
        return self.x[layer].tensor(shape), self.out[layer].tensor(shape)

    def body(self, layer, n_rows=None):
        x, out = self.tensors(layer, n_rows)
        assert self.ctx.decode_body(layer, x, out) is out

    def prep(self, spans):
        """spans: (name, sequence, tokens)."""
        self.ctx.synchronize()  # x may be in use
        spans = [(name, seq, n, seq.position()) for name, seq, n in spans]
        for layer in self.case.layers:
            self.x[layer].upload(b"".join(rows_of(self.case, name, layer, at, n) for name, _, n, at in spans))
        self.ctx.decode_prep([ds41.Span(seq, n) for _, seq, n, _ in spans])

    def capture(self, layers=None, **options):
        with self.ctx.capture(**options) as graph:
            for layer in self.case.layers if layers is None else layers:
                self.body(layer)
        return graph

    def take(self, spans, records):
        """What came out, to the end of the record of each name; behind it there are zeros where a graph ran."""
        self.ctx.synchronize()
        for layer in self.case.layers:
            out = bytes(self.out[layer].download())
            at = 0
            for name, _, n in spans:
                end = at + n * self.row_bytes
                records.setdefault(name, [b""] * len(self.case.layers))[layer] += out[at:end]
                at = end
            yield out[at:]

    def replay(self, graph, spans, records):
        self.prep(spans)
        graph.launch()
        assert not any(any(behind) for behind in self.take(spans, records))

    def run(self, spans, records):
        """Layer by layer."""
        self.prep(spans)
        for layer in self.case.layers:
            self.body(layer, sum(n for _, _, n in spans))
        list(self.take(spans, records))


@pytest.fixture
def scene(case, sim):
    return Scene(case, sim)


@pytest.fixture(scope="module")
def eager(case, sim):
    """The first n tokens of a name's sequence, one step a token without a graph: bytes of each layer."""
    known = {}

    def run(name, n):
        if len(known.get(name, [b""])[0]) < n * 2 * case.config.dim:
            known[name] = [b""] * len(case.layers)
            scene, seq = Scene(case, sim), ds41.Sequence(sim)
            for _ in range(n):
                scene.run([(name, seq, 1)], known)
        return [out[: n * 2 * case.config.dim] for out in known[name]]

    return run


def captured(scene, n_tokens=0):
    """A sequence of n tokens, a step for the next one, and a graph of it."""
    seq, records = ds41.Sequence(scene.model), {}
    for _ in range(n_tokens):
        scene.run([("a", seq, 1)], records)
    scene.prep([("a", seq, 1)])
    return seq, records, scene.capture()


def positions(scene, seq):
    return [seq.position(layer) for layer in scene.case.layers]


def check_goes_on(scene, seq, graph, records, eager):
    """The step in flight runs as if nothing had been."""
    graph.launch()
    list(scene.take([("a", seq, 1)], records))
    assert records["a"] == eager("a", seq.position())


# ---- On the host


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_host_backends_have_no_graphs(case, backend):
    model = case.model(backend=backend)
    ctx, seq = ds41.Context(model, n_threads=1), ds41.Sequence(model)
    assert not any(ctx.decode_capturable(layer) for layer in case.layers)
    ctx.decode_prep([seq])
    for options in ({}, {"external": True}):
        with pytest.raises(ds41.UnsupportedError, match=f"ds41_graph_begin: .*{backend} has no graphs"):
            with ctx.capture(**options):
                pytest.fail("nothing is captured here")
    x = memoryview(case.x(0, 0))[:1]
    ctx.decode_body(0, x)  # the step goes on
    assert seq.position(0) == 1
    thread = threading.Thread(target=ctx.decode_body, args=(1, x))  # and the context is nobody's
    thread.start()
    thread.join()
    assert seq.position(1) == 1


def test_a_scope_that_is_not_entered_does_nothing(ctx):
    ctx.capture()
    ctx.synchronize()


def test_graphs_are_made_by_contexts():
    with pytest.raises(TypeError, match=r"made by Context.capture\(\)"):
        ds41.Graph()


@pytest.mark.parametrize("call", [
    lambda: _ds41.ds41_graph_begin(None, 0),
    lambda: _ds41.ds41_graph_end(None),
    lambda: _ds41.ds41_graph_launch(None),
])  # fmt: skip
def test_null_is_refused_by_the_raw_layer(call):
    with pytest.raises(ds41.InvalidArgumentError, match="is NULL"):
        call()
    _ds41.ds41_graph_destroy(None)


def test_a_closed_context_captures_nothing(ctx):
    ctx.close()
    with pytest.raises(ds41.ClosedError, match="the Context is closed"):
        with ctx.capture():
            pytest.fail("nothing is captured here")


def test_the_split_of_the_attention_is_checked_everywhere(case, model, seq, x):
    expected = ds41.Context(model).prefill(0, seq, x).tobytes()
    for split in (1, 8):
        assert ds41.Context(model, attention_split=split).prefill(0, ds41.Sequence(model), x).tobytes() == expected
    for split in (-1, 9):
        with pytest.raises(ds41.InvalidArgumentError, match=f"attention_split is {split}"):
            ds41.Context(model, attention_split=split)


def test_a_graph_is_destroyed_in_its_own_process_only(monkeypatch):
    destroyed, pid = [], os.getpid()
    monkeypatch.setattr(_ds41, "ds41_graph_destroy", destroyed.append)
    captured_handle(1, ())
    handle = captured_handle(2, ())
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    del handle
    assert destroyed == [1]


# ---- Replays


@on_device
def test_a_replay_gives_the_bits_of_the_layers_one_by_one(scene, eager):
    seq, records, graph = captured(scene)
    assert positions(scene, seq) == [0] * len(scene.case.layers)  # the capture ran nothing
    check_goes_on(scene, seq, graph, records, eager)
    for _ in range(11):
        scene.replay(graph, [("a", seq, 1)], records)
    assert positions(scene, seq) == [12] * len(scene.case.layers)
    assert records["a"] == eager("a", 12)


@on_device
def test_a_captured_step_is_golden(case, sim):
    pytest.importorskip("numpy")
    prompt, step = case.steps[0]["tokens"], case.steps[1]
    scene, seq = Scene(case, sim, prompt), ds41.Sequence(sim)
    for layer in case.layers:
        x, out = scene.tensors(layer)
        scene.x[layer].upload(case.x(0, layer))
        scene.ctx.prefill(layer, seq, x, out=out)
    scene.ctx.synchronize()
    for layer in case.layers:
        scene.x[layer].upload(case.x(1, layer))
    assert (step["tokens"], step["start_pos"]) == (1, prompt)
    scene.ctx.decode_prep([seq])
    with scene.ctx.capture() as graph:
        for layer in case.layers:
            scene.body(layer, 1)
    graph.launch()
    scene.ctx.synchronize()
    assert_golden(case, {(1, i): bytes(scene.out[i].download(n_bytes=scene.row_bytes)) for i in case.layers}, "")


@on_device
def test_two_sequences_take_turns_in_one_graph(case, sim, scene, eager):
    a, b, records = ds41.Sequence(sim), ds41.Sequence(sim), {}
    for _ in range(5):
        scene.run([("b", b, 1)], records)
    scene.prep([("a", a, 1)])
    graph = scene.capture()
    for _ in range(7):
        scene.replay(graph, [("a", a, 1)], records)
        scene.replay(graph, [("b", b, 1)], records)
    assert records == {"a": eager("a", 7), "b": eager("b", 12)}


@on_device
def test_steps_may_have_fewer_rows_than_the_graph(case, sim, eager):
    scene = Scene(case, sim, 3)
    a, b, records = ds41.Sequence(sim), ds41.Sequence(sim), {}
    scene.prep([("a", a, 2), ("b", b, 1)])
    graph = scene.capture()
    for n_a, n_b in ((2, 1), (1, 0), (0, 1), (1, 1), (3, 0), (1, 2)):
        scene.replay(graph, [(name, seq, n) for name, seq, n in (("a", a, n_a), ("b", b, n_b)) if n], records)
    assert records == {"a": eager("a", 8), "b": eager("b", 5)}


@on_device
def test_graphs_and_layers_without_one_share_a_step(scene, sim, eager):
    seq, records = ds41.Sequence(sim), {}
    scene.prep([("a", seq, 1)])
    graphs = [scene.capture([layer]) for layer in scene.case.layers]
    for step in range(8):
        scene.prep([("a", seq, 1)])
        for layer, graph in enumerate(graphs):
            if step >> layer & 1:
                graph.launch()
            else:
                scene.body(layer)
        list(scene.take([("a", seq, 1)], records))
    assert records["a"] == eager("a", 8)


@on_device
@pytest.mark.parametrize("split", [1, 3, 8])
def test_any_split_of_the_attention_gives_the_same_bits(case, sim, eager, split):
    scene = Scene(case, sim, attention_split=split)
    seq, records, graph = captured(scene, 3)
    for _ in range(3):
        scene.replay(graph, [("a", seq, 1)], records)
    assert records["a"] == eager("a", 6)


@on_device
def test_device_memory_is_no_host_memory(case, sim, scene):
    tensor = scene.tensors(0)[0]
    assert not tensor.on_host
    with pytest.raises(BufferError, match="on a device"):
        memoryview(tensor)
    with pytest.raises(ds41.UnsupportedError, match="x is on CUDA device 0, backend cpu"):
        ds41.Context(case.model(backend="cpu")).decode_body(0, tensor)
    seq = ds41.Sequence(sim)
    scene.prep([("a", seq, 1)])
    host = memoryview(case.x(0, 0))[:1]
    with pytest.raises(ds41.InvalidArgumentError, match="device"):
        scene.ctx.decode_body(0, host, host)


# ---- Scopes


@on_device
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt(), ds41.Error("mine")])
@pytest.mark.parametrize("n_layers", [0, 2])
def test_an_exception_ends_the_capture_and_comes_out(scene, eager, error, n_layers):
    seq, records, graph = captured(scene, 2)
    with pytest.raises(type(error)) as caught:
        with scene.ctx.capture() as given_up:
            for layer in range(n_layers):
                scene.body(layer)
            raise error
    assert caught.value is error
    assert given_up.closed
    with pytest.raises(ds41.ClosedError, match="the Graph is closed"):
        given_up.launch()
    check_goes_on(scene, seq, graph, records, eager)


@on_device
def test_leaving_a_scope_otherwise_ends_it_too(scene, eager):
    def leaves(ctx):
        with ctx.capture():
            scene.body(0)
            return 7

    seq, records, graph = captured(scene)
    assert leaves(scene.ctx) == 7
    scope = scene.ctx.capture()
    open_graph = scope.__enter__()
    scene.body(0)
    del scope  # nobody can end it any more
    gc.collect()
    assert open_graph.closed
    check_goes_on(scene, seq, graph, records, eager)


@on_device
def test_a_capture_without_a_layer_is_refused(scene, eager):
    seq, records, graph = captured(scene)
    with pytest.raises(ds41.WrongOrderError, match="ds41_graph_end: the graph has no layer"):
        with scene.ctx.capture() as nothing:
            pass
    assert nothing.closed
    check_goes_on(scene, seq, graph, records, eager)
    scene.replay(graph, [("a", seq, 1)], records)


@on_device
def test_nothing_else_happens_during_a_capture(case, sim, scene, eager):
    seq, records, graph = captured(scene, 1)
    x, out = scene.tensors(0)
    with scene.ctx.capture() as inner:
        assert not inner.closed and "being captured" in repr(inner)
        for use, words in (
            (inner.launch, "the Graph is being captured"),
            (graph.launch, "a graph is being captured"),
            (lambda: scene.ctx.decode_prep([seq]), "a graph is being captured"),
            (lambda: scene.ctx.prefill(0, seq, x, out=out), "a graph is being captured"),
            (scene.ctx.synchronize, "a graph is being captured"),
            (lambda: scene.ctx.set_tap(print), "a graph is being captured"),
            (lambda: scene.ctx.capture().__enter__(), "captured on ctx already"),
            (lambda: ds41.Buffer(sim, 64), "allocating device memory"),
            (lambda: scene.x[0].upload(b"12"), "writing to device memory"),
            (lambda: scene.x[0].download(), "reading from device memory"),
            (lambda: ds41.Sequence(sim).reserve(20), "allocating device memory"),
        ):
            with pytest.raises(ds41.WrongOrderError, match=words):
                use()
        scene.body(1)
        with pytest.raises(ds41.WrongOrderError, match="need more than 1"):
            scene.body(1)
        scene.body(2)
    assert not inner.closed
    assert positions(scene, seq) == [1] * len(case.layers)
    check_goes_on(scene, seq, graph, records, eager)


@on_device
def test_a_graph_may_be_closed_in_its_scope(scene, eager):
    seq, records, graph = captured(scene)
    with scene.ctx.capture() as closed:
        scene.body(0)
        closed.close()
        scene.body(1)
    assert closed.closed
    check_goes_on(scene, seq, graph, records, eager)


@on_device
def test_a_context_may_be_closed_in_a_scope(scene, eager):
    seq, records, graph = captured(scene)
    handle = weakref.ref(scene.ctx._handle)
    with pytest.raises(ds41.ClosedError, match="the Context is closed"):
        with scene.ctx.capture() as given_up:
            scene.body(0)
            scene.ctx.close()
            assert handle() is not None
            scene.body(1)
    assert handle() is None and given_up.closed
    # The thread may allocate again, and the sequence goes on elsewhere.
    again = Scene(scene.case, scene.model)
    again.run([("a", seq, 1)], records)
    assert records["a"] == eager("a", 1)


@on_device
def test_the_owner_of_a_stream_captures_it_within_the_scope(scene, eager):
    seq, records, graph = captured(scene)
    with pytest.raises(ds41.WrongOrderError, match="the stream of ctx is not being captured"):
        with scene.ctx.capture(external=True):
            scene.body(0)
    check_goes_on(scene, seq, graph, records, eager)


@on_device
def test_a_capture_whose_end_is_refused_ends_later(scene, eager, monkeypatch):
    """As that of a stream which its owner still captures when the scope ends."""
    seq, records, graph = captured(scene)
    x, out = scene.tensors(0)
    given = []
    end, refused, destroyed = _ds41.ds41_graph_end, [], []
    destroy = _ds41.ds41_graph_destroy
    monkeypatch.setattr(_ds41, "ds41_graph_destroy", lambda graph: (destroyed.append(graph), destroy(graph)))

    def refuse(ctx):
        refused.append(ctx)
        raise ds41.WrongOrderError("still being captured")

    for use in (
        lambda: scene.ctx.decode_prep([seq]),
        lambda: given.append(scene.capture([0])),
        lambda: scene.ctx.prefill(0, ds41.Sequence(scene.model), x, out=out),
    ):
        monkeypatch.setattr(_ds41, "ds41_graph_end", refuse)
        with pytest.raises(ds41.WrongOrderError, match="still being captured"):
            with scene.ctx.capture() as open_graph:
                scene.body(0)
        assert open_graph.closed
        with pytest.raises(ds41.WrongOrderError, match="a graph is being captured on ctx"):
            scene.ctx.decode_prep([seq])
        assert len(refused) == 2  # it has been tried again
        refused.clear()
        destroyed.clear()
        monkeypatch.setattr(_ds41, "ds41_graph_end", end)
        use()
        assert destroyed  # with what has been recorded
    scene.prep([("a", seq, 1)])
    check_goes_on(scene, seq, graph, records, eager)


# ---- Launches that are refused


@on_device
def test_launches_out_of_turn_are_refused_and_change_nothing(case, sim, scene, eager):
    seq, records, graph = captured(scene, 2)
    other = ds41.Sequence(sim)

    def refused(error, words):
        before = positions(scene, seq), positions(scene, other)
        with pytest.raises(error, match=words) as caught:
            graph.launch()
        assert caught.value.message.startswith("ds41_graph_launch: ")
        assert (positions(scene, seq), positions(scene, other)) == before

    scene.ctx.decode_prep([seq, other])
    refused(ds41.InvalidShapeError, "the step has 2 rows, need at most 1")
    scene.prep([("a", other, 1)])
    scene.body(0)
    refused(ds41.InvalidPositionError, "start_pos")
    other.reset()
    refused(ds41.WrongOrderError, "the step on ctx is over")
    with pytest.raises(ds41.WrongOrderError, match="ds41_graph_begin: the step on ctx is over"):
        scene.capture([0])
    scene.ctx.decode_prep([other])
    other.close()
    with pytest.raises(ds41.WrongOrderError, match="the step on ctx is over"):
        graph.launch()
    other = ds41.Sequence(sim)
    scene.ctx.decode_prep([seq])
    scene.ctx.set_tap(lambda tap: None)
    refused(ds41.WrongOrderError, "a tap is set")
    with pytest.raises(ds41.WrongOrderError, match="a tap is set"):
        scene.capture([0])
    assert not scene.ctx.decode_capturable(0)
    scene.ctx.set_tap(None)
    assert all(scene.ctx.decode_capturable(layer) for layer in case.layers)
    scene.prep([("a", seq, 1)])
    check_goes_on(scene, seq, graph, records, eager)
    refused(ds41.InvalidPositionError, "start_pos")  # once too often
    x, out = scene.tensors(0)
    scene.ctx.prefill(0, other, x, out=out)
    refused(ds41.WrongOrderError, "ds41_decode_prep comes first")
    with pytest.raises(ds41.WrongOrderError, match="ds41_decode_prep comes first"):
        scene.capture([0])
    scene.replay(graph, [("a", seq, 1)], records)


@on_device
def test_a_layer_without_its_source_is_refused(case, sim, scene):
    reader = next(i for i in case.layers if case.config.role(i).kv_source not in (-1, i))
    seq = ds41.Sequence(sim)
    scene.prep([("a", seq, 1)])
    graph = scene.capture([reader])  # left to launches
    with pytest.raises(ds41.WrongOrderError, match=f"layer is {reader}, which reads .* has not run in this step"):
        graph.launch()
    for layer in range(reader):
        scene.body(layer)
    graph.launch()
    scene.ctx.synchronize()
    assert seq.position(reader) == 1


@on_device
def test_a_stale_graph_says_so(case, sim, scene):
    """A selection that a graph takes from outside lies elsewhere since a larger step ran."""
    reader = next(i for i in case.layers if case.config.role(i).index_source not in (-1, i))
    seq, wide = ds41.Sequence(sim), Scene(case, sim, 9, ctx=scene.ctx)
    scene.prep([("a", seq, 1)])
    graph = scene.capture([reader])
    wide.run([("b", ds41.Sequence(sim), 9)], {})
    scene.prep([("a", seq, 1)])
    for layer in range(reader):
        scene.body(layer)
    with pytest.raises(ds41.WrongOrderError, match=f"stale: its layer {reader}"):
        graph.launch()
    assert seq.position(reader) == 0
    seq.reset()
    scene.prep([("a", seq, 1)])
    graph = scene.capture([reader])
    for layer in range(reader):
        scene.body(layer)
    graph.launch()
    scene.ctx.synchronize()
    assert seq.position(reader) == 1


# ---- Lifetimes


@on_device
def test_a_graph_keeps_its_rows(case, scene, eager):
    """Their addresses are baked into it."""
    seq, records, graph = captured(scene, 1)
    buffers = [weakref.ref(buffer._handle) for buffer in (*scene.x, *scene.out)]
    outs = [scene.out[layer].tensor((1, case.config.dim)).address for layer in case.layers]
    last = scene.out[-1]  # to look into
    for buffer in (*scene.x, *scene.out[:-1]):
        buffer.close()
    gc.collect()
    assert all(buffer() is not None for buffer in buffers)
    ds41.Buffer(scene.model, 64)  # where nothing has become free
    assert len({*outs, last.address}) == len(outs)
    graph.launch()
    scene.ctx.synchronize()
    assert bytes(last.download()) == eager("a", 2)[-1][-scene.row_bytes :]
    del last, scene.x[:], scene.out[:]
    graph.close()
    gc.collect()
    assert [buffer() for buffer in buffers] == [None] * len(buffers)


@on_device
def test_a_discarded_capture_keeps_nothing(scene, eager):
    seq, records, graph = captured(scene)
    buffer = ds41.Buffer(scene.model, scene.row_bytes)
    handle = weakref.ref(buffer._handle)
    with contextlib.suppress(ZeroDivisionError):
        with scene.ctx.capture():
            rows = buffer.tensor((1, scene.case.config.dim))
            scene.ctx.decode_body(0, rows, rows)
            raise ZeroDivisionError
    del buffer, rows
    gc.collect()
    assert handle() is None
    check_goes_on(scene, seq, graph, records, eager)


@on_device
@pytest.mark.parametrize("order", ["graph ctx seq model", "ctx graph seq model", "model seq ctx graph", "seq graph"])
def test_objects_close_in_any_order_and_twice(case, sim, eager, order):
    scene = Scene(case, case.model(backend="sim"))
    seq, records, graph = captured(scene)
    check_goes_on(scene, seq, graph, records, eager)
    scene.prep([("a", seq, 1)])
    graph.launch()  # under way while everything is closed
    objects = {"graph": graph, "ctx": scene.ctx, "seq": seq, "model": scene.model}
    for name in order.split() * 2:
        objects[name].close()
        assert objects[name].closed and "closed" in repr(objects[name])


@on_device
def test_a_graph_is_closed_by_its_own_scope_and_refuses_use(scene, eager):
    seq, records, graph = captured(scene)
    with graph as same:
        assert same is graph and "captured" in repr(graph)
        check_goes_on(scene, seq, graph, records, eager)
    assert graph.closed
    for use in (graph.launch, graph.__enter__):
        with pytest.raises(ds41.ClosedError, match="the Graph is closed"):
            use()


@on_device
@pytest.mark.parametrize("close", [lambda scene: scene.ctx.close(), lambda scene: delattr(scene, "ctx")])
def test_a_graph_does_not_keep_its_context(scene, close):
    _, _, graph = captured(scene)
    handle = weakref.ref(scene.ctx._handle)
    close(scene)
    gc.collect()
    assert handle() is None and not graph.closed
    with pytest.raises(ds41.WrongOrderError, match="ds41_graph_launch: the context of the graph was destroyed"):
        graph.launch()
    graph.close()


def native(graph):
    return weakref.ref(graph._handle.pointer)


@on_device
def test_a_graph_goes_with_its_last_user(scene):
    _, _, graph = captured(scene)
    handle = native(graph)
    graph.close()
    assert handle() is None
    _, _, graph = captured(scene)
    handle = native(graph)
    graph.itself = graph
    del graph
    assert handle() is not None
    gc.collect()
    assert handle() is None


@on_device
def test_a_graph_is_not_destroyed_beside_a_call_on_its_context(scene, eager, monkeypatch):
    destroyed = []
    destroy = _ds41.ds41_graph_destroy
    monkeypatch.setattr(
        _ds41, "ds41_graph_destroy", lambda graph: (destroyed.append(threading.get_ident()), destroy(graph))
    )
    seq, records, graph = captured(scene)
    handles = [native(graph)]

    def let_go(tap):  # by the thread of the call itself
        graph.close()
        assert not destroyed

    scene.ctx.set_tap(let_go, ["q"])
    scene.body(0)
    assert destroyed == [threading.get_ident()] and handles[0]() is None
    scene.ctx.set_tap(None)

    # By another thread, on which it is only put aside, whether or not a call is under way.
    seq, records, graph = captured(scene)
    kept = native(graph)
    in_thread(graph.close)
    assert graph.closed and len(destroyed) == 1 and kept() is not None
    scene.ctx.synchronize()
    assert destroyed == [threading.get_ident()] * 2 and kept() is None

    # The context goes first.
    seq, records, graph = captured(scene)
    in_thread(graph.close)
    scene.ctx.close()
    assert len(destroyed) == 3


@on_device
def test_a_graph_that_is_let_go_during_a_capture(scene, eager):
    seq, records, graph = captured(scene)
    _, _, other = captured(scene)
    scene.prep([("a", seq, 1)])
    with scene.ctx.capture() as kept:
        scene.body(0)
        handle = native(other)
        other.close()
        assert handle() is None
        for layer in scene.case.layers[1:]:
            scene.body(layer)
    graph.close()
    check_goes_on(scene, seq, kept, records, eager)


@on_device
def test_a_capture_is_for_one_thread(sim, scene, eager):
    seq, records, graph = captured(scene)
    with scene.ctx.capture() as mine:
        for use in (
            lambda: scene.ctx.decode_body(0, *scene.tensors(0)),
            lambda: scene.ctx.decode_prep([seq]),
            scene.ctx.synchronize,
            lambda: scene.ctx.capture().__enter__(),
            graph.launch,
        ):
            error = in_thread(use)
            assert isinstance(error, ds41.InUseError) and "another thread captures a graph" in error.message
        for layer in scene.case.layers:
            scene.body(layer)
    check_goes_on(scene, seq, mine, records, eager)
    scene.prep([("a", seq, 1)])
    assert in_thread(graph.launch) is None  # the context, and its graphs, may move between calls
    list(scene.take([("a", seq, 1)], records))
    assert records["a"] == eager("a", 2)


@on_device
def test_a_scope_that_ends_on_another_thread_ends(scene, eager):
    seq, records, graph = captured(scene)
    scope = scene.ctx.capture()
    moved = scope.__enter__()
    scene.body(0)
    assert in_thread(lambda: scope.__exit__(None, None, None)) is False  # nothing is swallowed
    moved.close()
    check_goes_on(scene, seq, graph, records, eager)


@on_device
def test_a_graph_is_in_use_with_its_context(scene):
    _, _, graph = captured(scene)
    seq = ds41.Sequence(scene.model)
    errors = []

    def tap(_):
        errors.append(in_thread(graph.launch))
        with pytest.raises(ds41.InUseError, match="Graph.launch: the context is in use by another call"):
            graph.launch()

    scene.ctx.set_tap(tap, ["q"])
    scene.prep([("a", seq, 1)])
    scene.body(0)
    assert [type(error) for error in errors] == [ds41.InUseError]
    scene.ctx.set_tap(None)
    with scene.ctx._handle.lock:
        with pytest.raises(ds41.InUseError):
            graph.launch()


@on_device
def test_the_sequences_of_a_step_are_in_use_during_a_launch(scene):
    seq, _, graph = captured(scene)
    with seq._handle.lock:
        with pytest.raises(ds41.InUseError, match="Graph.launch: the sequence is in use"):
            graph.launch()
    graph.launch()
    other = ds41.Sequence(scene.model)
    scene.prep([("b", other, 1)])  # a step that the graph was not captured with
    with other._handle.lock:
        with pytest.raises(ds41.InUseError, match="Graph.launch: the sequence is in use"):
            graph.launch()
    with seq._handle.lock:
        graph.launch()
    scene.ctx.synchronize()


@on_device
def test_threads_take_turns_and_let_go_of_each_others_graphs(case, sim, eager):
    """Each on a context of its own. In turns, since the simulated device takes no work beside a capture."""
    expected = eager("a", 5)
    given, handles, wrong, turn = [], [], [], threading.Lock()

    def work():
        try:
            with turn:
                scene = Scene(case, sim)
                seq, records = ds41.Sequence(sim), {}
            for _ in range(5):
                with turn:
                    scene.prep([("a", seq, 1)])
                    given.append(scene.capture())
                    handles.append(native(given[-1]))
                    given[-1].launch()
                    list(scene.take([("a", seq, 1)], records))
                    del given[:-2]
            assert records["a"] == expected
            with turn:
                del scene
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(handles) == 15
    given.clear()
    gc.collect()
    assert all(handle() is None for handle in handles)


@on_device
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_lets_go_of_graphs():
    code = f"""
import os, sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import ds41
from conftest import Case
from test_graph import Scene, captured
case = Case({SMALL!r})
scene = Scene(case, case.model(backend="sim"))
seq, records, graph = captured(scene)
pid = os.fork()
if pid == 0:
    try:
        graph.launch()
    except ds41.WrongOrderError as error:
        assert "forked" in error.message
    else:
        os._exit(1)
    graph.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
graph.launch()
scene.ctx.synchronize()
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def run_python(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(ds41.__file__).parents[1])}
    if PLUGINS:
        environment["DS41_PLUGIN_PATH"] = PLUGINS
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, env=environment)


@on_device
def test_nothing_is_said_at_exit_whatever_is_left():
    """A graph in a cycle, a capture that is open."""
    code = f"""
import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import ds41
from conftest import Case
from test_graph import Scene, captured
case = Case({SMALL!r})
scene = Scene(case, case.model(backend="sim"))
seq, records, graph = captured(scene)
graph.launch()
scene.prep([("a", seq, 1)])
scope = scene.ctx.capture()
scope.__enter__()
scene.body(0)
graph.itself = graph
ds41.forever = [scene, seq, graph, scope]
"""
    done = run_python("-X", "dev", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@on_device
def test_captures_leak_nothing(scene):
    seq, _, graph = captured(scene)
    del graph

    def everything():
        scene.prep([("a", seq, 1)])
        with scene.capture() as graph:
            graph.launch()
        scene.prep([("a", seq, 1)])
        with contextlib.suppress(ZeroDivisionError):
            with scene.ctx.capture():
                scene.body(0)
                raise ZeroDivisionError
        with contextlib.suppress(ds41.WrongOrderError):
            scene.capture([])
        scene.ctx.synchronize()
        seq.reset()

    def in_use():
        gc.collect()
        return sys.getallocatedblocks(), n_malloc_bytes()

    assert_no_growth(everything, in_use, n_rounds=20)


# ---- The example


@pytest.mark.parametrize("backend, way", [
    ("cpu", "layer by layer"),
    pytest.param("sim", "captured", marks=on_device),
])  # fmt: skip
def test_the_example_captures_where_it_can(make_checkpoint, backend, way):
    path = make_checkpoint()
    done = run_python(ROOT / "examples" / "python" / "captured.py", path, backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"backend {backend}, {way}: 8 tokens of 2 sequences, last value ")
    c_example = os.environ.get("DS41_C_CAPTURED")
    if c_example is not None:
        c = subprocess.run([c_example, path, backend], capture_output=True, text=True, check=True,
                           env={**os.environ, "DS41_PLUGIN_PATH": PLUGINS or ""})  # fmt: skip
        assert done.stdout == c.stdout


def test_the_example_says_what_it_lacks(tmp_path):
    example = ROOT / "examples" / "python" / "captured.py"
    assert run_python(example).returncode == 2
    done = run_python(example, tmp_path / "nothing")
    assert done.returncode == 1 and done.stderr.startswith("captured: ds41_model_load: ")
