"""What a context and a sequence tell, and taps."""
import ds41
import pytest


def test_positions_advance(case, model, ctx, seq):
    assert seq.position() == 0
    ctx.prefill(0, seq, case.x(0, 0))
    assert seq.position() == seq.position(0) == 12 and seq.position(1) == 0
    ctx.prefill(0, seq, case.x(0, 0))  # where the layer stands, by default
    assert seq.position(0) == 24
    seq.reset()
    assert seq.position() == 0


def test_memory_is_told(case, model, ctx, seq, x):
    assert seq.n_bytes == 0
    seq.reserve(64)
    reserved = seq.n_bytes
    assert reserved > 0
    for layer in case.layers:
        ctx.prefill(layer, seq, case.x(0, layer))
    assert seq.n_bytes == reserved and ctx.n_bytes > 0
    ctx.synchronize()


def test_nothing_is_captured_on_the_cpu(ctx):
    assert ctx.decode_capturable(0) is False


def test_options_of_a_context(model, seq, x):
    expected = ds41.Context(model).prefill(0, seq, x).tobytes()
    for options in ({"n_threads": 2, "pin_threads": True}, {"n_threads": 1}, {"topk_end_pos": 12}, {"stream": 0}):
        assert ds41.Context(model, **options).prefill(0, ds41.Sequence(model), x).tobytes() == expected


def test_names_of_taps(case, model, ctx, seq):
    names = []
    ctx.set_tap(lambda tap: names.append(tap.name))
    for layer in case.layers:
        ctx.prefill(layer, seq, case.x(0, layer))
    assert set(names) == set(ds41.TAP_NAMES)
    for name in ds41.TAP_NAMES:
        ctx.set_tap(print, [name])


def test_taps_may_be_kept(case, model, ctx, seq, x):
    kept = []
    ctx.set_tap(kept.append, ["q"])
    ctx.prefill(0, seq, x)
    before = kept[0].tensor.tobytes()
    for layer in (1, 2):
        ctx.prefill(layer, seq, case.x(0, layer))
    assert kept[0].tensor.tobytes() == before and len({tap.layer for tap in kept}) == 3
    assert kept[0].tensor.shape == (12, case.config.n_heads, case.config.head_dim)


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt(), ds41.Error("mine")])
def test_an_exception_of_a_tap_comes_out_once(case, ctx, seq, x, error):
    def tap(_):
        raise error

    ctx.set_tap(tap)
    with pytest.raises(type(error)) as caught:
        ctx.prefill(0, seq, x)
    assert caught.value is error
    assert seq.position(0) == 12  # the layer has run
    ctx.set_tap(None)
    ctx.prefill(1, seq, x)


def test_a_wrong_name_leaves_the_tap(ctx, seq, x):
    seen = []
    ctx.set_tap(seen.append, ["q"])
    with pytest.raises(ds41.InvalidArgumentError):
        ctx.set_tap(print, ["nothing"])
    ctx.prefill(0, seq, x)
    assert len(seen) == 1


def test_a_new_output_by_default(ctx, seq, x):
    out = ctx.prefill(0, seq, x)
    assert isinstance(out, ds41.Tensor) and out.address != x.address and not out.read_only
