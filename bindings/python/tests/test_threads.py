"""Threads: side by side on one model, the interpreter's lock, and objects that are in use already."""
import sys
import threading
import time

import ds41
import pytest
from conftest import Case


def in_thread(function):
    """What a function raises or returns on another thread."""
    result = []

    def run():
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def prompt(case, model):
    ctx, seq = ds41.Context(model, n_threads=1), ds41.Sequence(model)
    return [ctx.prefill(layer, seq, case.x(0, layer)).tobytes() for layer in case.layers]


def test_threads_share_a_model(case, model):
    expected = prompt(case, model)
    wrong = []

    def run():
        for _ in range(30):
            if prompt(case, model) != expected:
                wrong.append("bits differ")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_contexts_are_created_side_by_side(case, model):
    created = []

    def create():
        created.extend((ds41.Context(model), ds41.Sequence(model), ds41.Buffer(model, 64)) for _ in range(30))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 120


def test_the_interpreter_runs_while_a_layer_computes():
    """Another thread comes to its turn inside a call, which it would not if the call held the lock."""
    case = Case("h_long")
    model = case.model(backend="reference")
    ctx, seq, rows = ds41.Context(model), ds41.Sequence(model), case.x(0, 0)
    inside, turns, ended = threading.Event(), [0], threading.Event()

    def count():
        while not ended.is_set():
            turns[0] += inside.is_set()
            time.sleep(0)

    before = sys.getswitchinterval()
    sys.setswitchinterval(10)  # a thread that does not release the lock keeps it
    thread = threading.Thread(target=count)
    try:
        thread.start()
        inside.set()
        started = time.perf_counter()
        while time.perf_counter() - started < 0.3:
            seq.reset()
            ctx.prefill(0, seq, rows)
        inside.clear()
        ended.set()
    finally:
        sys.setswitchinterval(before)
        ended.set()
        thread.join()
    assert turns[0] > 10


def test_an_object_in_use_is_refused(case, model, x):
    """From another thread, and from the call's own callback."""
    ctx, seq = ds41.Context(model), ds41.Sequence(model)
    other = ds41.Context(model)
    errors = []

    def tap(_):
        for use in (
            lambda: ctx.prefill(0, ds41.Sequence(model), x),
            lambda: ctx.decode_prep([ds41.Sequence(model)]),
            lambda: ctx.decode_body(0, x),
            lambda: ctx.synchronize(),
            lambda: ctx.n_bytes,
            lambda: ctx.decode_capturable(0),
            lambda: ctx.capture().__enter__(),
            lambda: ctx.set_tap(None),
            lambda: other.prefill(0, seq, x),
            lambda: other.decode_prep([seq]),
            lambda: seq.reset(),
            lambda: seq.position(),
            lambda: seq.reserve(5),
            lambda: seq.n_bytes,
        ):
            errors.append(in_thread(use))
            with pytest.raises(ds41.InUseError):
                use()

    ctx.set_tap(tap, ["q"])
    ctx.prefill(0, seq, x)
    assert len(errors) == 14
    assert all(isinstance(error, ds41.InUseError) and "in use by another call" in error.message for error in errors)
    ctx.set_tap(None)
    ctx.prefill(1, seq, x)  # everything has been given back


def test_the_sequences_of_a_step_are_in_use_during_its_bodies(case, model, ctx):
    seqs = [ds41.Sequence(model) for _ in range(2)]
    errors = []
    ctx.set_tap(lambda tap: errors.append(in_thread(seqs[1].reset)), ["q"])
    ctx.decode_prep(seqs)
    ctx.decode_body(0, memoryview(case.x(0, 0))[:2])
    assert [type(error) for error in errors] == [ds41.InUseError] * 2  # a tap per span


def test_a_caller_runs_the_work_with_a_parallel_for_of_its_own():
    case = Case("c_production_heads")
    model = case.model()
    ctx, seq = ds41.Context(model, n_threads=1), ds41.Sequence(model)
    expected = [ctx.prefill(layer, seq, case.x(0, layer)).tobytes() for layer in case.layers]

    def on_threads(n, task):
        threads = [threading.Thread(target=task, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    calls = []
    late = []
    ways = {
        "threads": on_threads,
        "backwards": lambda n, task: [task(i) for i in reversed(range(n))],
        "not at all": lambda n, task: late.append(task),
        "not waited for": lambda n, task: [threading.Thread(target=task, args=(i,)).start() for i in range(n)],
    }
    for way in ways.values():

        def parallel(n, task):
            assert 1 <= n <= 3
            calls.append(n)
            try:
                way(n, task)
            except ds41.WrongOrderError:
                pass

        ctx, seq = ds41.Context(model, n_threads=3, parallel=parallel), ds41.Sequence(model)
        calls.clear()
        threading.excepthook, before = lambda args: None, threading.excepthook  # those that came too late
        try:
            assert [ctx.prefill(layer, seq, case.x(0, layer)).tobytes() for layer in case.layers] == expected
        finally:
            threading.excepthook = before
        assert max(calls) > 1
    with pytest.raises(ds41.WrongOrderError, match="after its parallel-for has returned"):
        late[0](0)


@pytest.mark.parametrize("indices, error", [([0, 0], ds41.InvalidArgumentError), ([-1], ds41.InvalidArgumentError),
                                            ([99], ds41.InvalidArgumentError), (["x"], TypeError)])  # fmt: skip
def test_wrong_indices_of_a_parallel_for_are_refused(indices, error):
    case = Case("c_production_heads")
    model = case.model()
    ctx = ds41.Context(model, n_threads=2, parallel=lambda n, task: [task(i) for i in indices])
    with pytest.raises(error):
        ctx.prefill(0, ds41.Sequence(model), case.x(0, 0))
