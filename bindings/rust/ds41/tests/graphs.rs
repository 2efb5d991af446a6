//! Captured steps: the bits of the layers one by one, what is refused, and what lives how long. On the simulated
//! device, whose library is in the folder that DS41_TEST_PLUGINS names: `cargo test --test graphs -- --ignored`.
mod support;

use ds41::*;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use support::Case;

fn on_sim() -> ModelOptions {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let folder = std::env::var_os("DS41_TEST_PLUGINS").expect("DS41_TEST_PLUGINS names no folder");
        std::env::set_var("DS41_PLUGIN_PATH", folder); // each test of this file waits for it
    });
    ModelOptions::new().backend("sim")
}

#[track_caller]
fn assert_error<T>(result: Result<T>, status: Status, words: &str) {
    let error = result.err().expect("the call succeeds");
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(words), "{error:?} does not say {words:?}");
}

struct Scene {
    case: Case,
    model: Model<'static>,
    n_layers: i32,
    dim: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        // While one thread captures, the simulated device takes what others do to memory for a mistake.
        static DEVICE: Mutex<()> = Mutex::new(());
        let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
        let case = Case::load("a_golden_stable");
        let model = case.model_with(false, &on_sim());
        assert_eq!(model.backend(), "sim");
        let (n_layers, dim) = (case.config.compress_ratios.len() as i32, case.config.dim as usize);
        Self { case, model, n_layers, dim, _alone: alone }
    }

    fn layers(&self) -> std::ops::Range<i32> {
        0..self.n_layers
    }

    fn context(&self) -> Context<'static> {
        Context::new(&self.model, ContextOptions::new()).unwrap()
    }

    fn sequence(&self) -> Sequence<'static> {
        Sequence::new(&self.model).unwrap()
    }

    fn n_tokens(&self) -> i64 {
        self.case.steps[0].n_tokens
    }

    /// Input of a token of a text: the case's own tokens, from another one on for each text.
    fn input(&self, text: i64, token: i64, layer: i32) -> Vec<Bf16> {
        let at = ((5 * text + token) % self.n_tokens()) as usize * self.dim;
        self.case.input(0, layer)[at..at + self.dim].to_vec()
    }

    fn rows(&self, n_rows: usize) -> Rows<'_> {
        let n_bytes = (n_rows * self.dim * 2) as u64;
        let buffers = || self.layers().map(|_| Buffer::new(&self.model, n_bytes).unwrap()).collect();
        Rows { scene: self, n_rows, x: buffers(), out: buffers() }
    }

    /// Outputs of a text's first tokens without a graph: [token][layer].
    fn eager(&self, text: i64, n: i64) -> Vec<Vec<u16>> {
        let (mut context, mut sequence, mut rows) = (self.context(), self.sequence(), self.rows(1));
        let mut run = |token| {
            rows.put(&[(text, token)]);
            let mut step = context.decode_prep([Span::new(&mut sequence, token, 1)]).unwrap();
            self.layers().for_each(|layer| rows.body(&mut step, layer));
            rows.take().remove(0)
        };
        (0..n).map(&mut run).collect()
    }
}

/// Inputs and outputs of a step's layers.
struct Rows<'a> {
    scene: &'a Scene,
    n_rows: usize,
    x: Vec<Buffer<'static>>,
    out: Vec<Buffer<'static>>,
}

impl Rows<'_> {
    fn shape(&self) -> [i64; 2] {
        [self.n_rows as i64, self.scene.dim as i64]
    }

    /// Tokens of texts; the rows behind them are NaN, and the outputs are.
    fn put(&mut self, tokens: &[(i64, i64)]) {
        let n = self.n_rows * self.scene.dim;
        for layer in self.scene.layers() {
            let inputs = tokens.iter().map(|(text, token)| self.scene.input(*text, *token, layer));
            let mut values = inputs.collect::<Vec<_>>().concat();
            values.resize(n, Bf16::NAN);
            self.x[layer as usize].upload(0, &values).unwrap();
            self.out[layer as usize].upload(0, &vec![Bf16::NAN; n]).unwrap();
        }
    }

    /// What came out: [row][layer].
    fn take(&self) -> Vec<Vec<u16>> {
        let dim = self.scene.dim;
        let mut rows = vec![Vec::new(); self.n_rows];
        for out in &self.out {
            let mut values = vec![Bf16::ZERO; self.n_rows * dim];
            out.download(0, &mut values).unwrap();
            for (row, values) in rows.iter_mut().zip(values.chunks(dim)) {
                row.extend(values.iter().map(|value| value.to_bits()));
            }
        }
        rows
    }

    fn body(&mut self, step: &mut DecodeStep<'_, '_>, layer: i32) {
        let shape = self.shape();
        let x = self.x[layer as usize].tensor(0, Dtype::Bf16, &shape).unwrap();
        let mut out = self.out[layer as usize].tensor_mut(0, Dtype::Bf16, &shape).unwrap();
        step.body(layer, &x, &mut out).unwrap();
    }

    fn record(&mut self, capture: &mut Capture<'_, '_>, layer: i32) -> Result<()> {
        let shape = self.shape();
        let x = self.x[layer as usize].tensor(0, Dtype::Bf16, &shape)?;
        let mut out = self.out[layer as usize].tensor_mut(0, Dtype::Bf16, &shape)?;
        capture.body(layer, &x, &mut out)
    }

    fn capture<'w>(&mut self, step: &mut DecodeStep<'_, 'w>, mut layers: std::ops::Range<i32>) -> Graph<'w> {
        step.capture(|capture| layers.try_for_each(|layer| self.record(capture, layer))).unwrap()
    }
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_graph_gives_the_bits_of_its_layers_one_by_one() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut rows) = (scene.context(), scene.sequence(), scene.rows(1));
    assert!(context.is_capturable(0).unwrap());
    let expected = scene.eager(0, scene.n_tokens());
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let graph = rows.capture(&mut step, scene.layers());
    rows.put(&[(0, 0)]);
    step.launch(&graph).unwrap(); // the step that it was made with has not run
    assert!(rows.take() == expected[..1]);
    assert_eq!(sequence.position(scene.n_layers - 1), Ok(1));
    for token in 1..scene.n_tokens() {
        rows.put(&[(0, token)]);
        context.decode_prep([Span::new(&mut sequence, token, 1)]).unwrap().launch(&graph).unwrap();
        assert!(rows.take()[0] == expected[token as usize], "token {token}");
    }
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_graph_serves_all_sequences_and_fewer_rows() {
    let scene = Scene::new();
    let texts = [scene.eager(0, 12), scene.eager(1, 12)];
    let mut context = scene.context();
    let (mut a, mut b) = (scene.sequence(), scene.sequence());
    let mut rows = scene.rows(3);
    let mut step = context.decode_prep([Span::new(&mut a, 0, 2), Span::new(&mut b, 0, 1)]).unwrap();
    let graph = rows.capture(&mut step, scene.layers());
    let (mut at_a, mut at_b) = (0, 0);
    for (n_a, n_b) in [(2, 1), (1, 0), (0, 1), (1, 1), (0, 3), (3, 0), (1, 2), (0, 1)] {
        let of_a = (0..n_a).map(|i| (0, at_a + i));
        let tokens: Vec<_> = of_a.chain((0..n_b).map(|i| (1, at_b + i))).collect();
        rows.put(&tokens);
        let spans = [(&mut a, at_a, n_a), (&mut b, at_b, n_b)].into_iter().filter(|(_, _, n)| *n > 0);
        let spans = spans.map(|(sequence, at, n)| Span::new(sequence, at, n as i32));
        context.decode_prep(spans).unwrap().launch(&graph).unwrap();
        let out = rows.take();
        for (row, (text, token)) in out.iter().zip(&tokens) {
            assert!(*row == texts[*text as usize][*token as usize], "text {text}, token {token}");
        }
        assert!(out[tokens.len()..].iter().flatten().all(|bits| *bits == 0), "rows behind the step's are not zeros");
        (at_a, at_b) = (at_a + n_a, at_b + n_b);
    }
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn graphs_and_layers_without_one_share_a_step() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut rows) = (scene.context(), scene.sequence(), scene.rows(1));
    let parts = [0..2, 2..3, 3..scene.n_layers];
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let graphs = parts.clone().map(|layers| rows.capture(&mut step, layers));
    let expected = scene.eager(0, 8);
    for token in 0..8 {
        rows.put(&[(0, token)]);
        let mut step = context.decode_prep([Span::new(&mut sequence, token, 1)]).unwrap();
        for (bit, (graph, layers)) in graphs.iter().zip(parts.clone()).enumerate() {
            match token >> bit & 1 {
                1 => step.launch(graph).unwrap(),
                _ => layers.for_each(|layer| rows.body(&mut step, layer)),
            }
        }
        assert!(rows.take()[0] == expected[token as usize], "token {token}");
    }
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_layer_in_place() {
    let scene = Scene::new();
    let (mut context, mut sequence) = (scene.context(), scene.sequence());
    let (n_bytes, shape) = (2 * scene.dim as u64, [1, scene.dim as i64]);
    let mut buffer = Buffer::new(&scene.model, n_bytes).unwrap();
    assert!(!buffer.as_device_ptr().is_null());
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let record = |capture: &mut Capture<'_, '_>| {
        assert!(capture.context().is_capturable(0)?);
        capture.body_in_place(0, &mut buffer.tensor_mut(0, Dtype::Bf16, &shape)?)
    };
    let graph = step.capture(record).unwrap();
    buffer.upload(0, &scene.input(0, 0, 0)).unwrap();
    step.launch(&graph).unwrap();
    let mut out = vec![Bf16::ZERO; scene.dim];
    buffer.download(0, &mut out).unwrap();
    let out: Vec<_> = out.into_iter().map(Bf16::to_bits).collect();
    assert!(out == scene.eager(0, 1)[0][..scene.dim]);
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_closure_that_fails_or_panics_leaves_no_capture() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut rows) = (scene.context(), scene.sequence(), scene.rows(1));
    let mut held = Buffer::new(&scene.model, 4).unwrap();
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let own = step.capture(|capture| {
        rows.record(capture, 0)?;
        held.tensor(0, Dtype::F32, &[2]).map(|_| ())
    });
    assert_error(own, Status::InvalidShape, "F32 [2]");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        step.capture(|capture| {
            rows.record(capture, 0)?;
            panic!("of the closure")
        })
    }));
    assert_eq!(result.unwrap_err().downcast_ref::<&str>(), Some(&"of the closure"));
    assert_error(step.capture(|_| Ok(())), Status::WrongOrder, "no layer");
    // What the library refuses meanwhile.
    let mut copies = || step.capture(|_| held.upload(0, &[1i32]));
    assert_error(copies(), Status::WrongOrder, "ds41_buffer_upload");
    assert_error(step.capture(|_| held.download(0, &mut [1i32])), Status::WrongOrder, "ds41_buffer_download");
    assert_error(step.capture(|_| Buffer::new(&scene.model, 4).map(drop)), Status::WrongOrder, "ds41_buffer_create");
    let mut other = scene.sequence();
    assert_error(step.capture(|_| other.reserve(20)), Status::WrongOrder, "ds41_seq_reserve");
    // Layers out of order, rows of another shape, rows that are no buffer.
    let out_of_order = step.capture(|capture| [3, 0].into_iter().try_for_each(|layer| rows.record(capture, layer)));
    assert_error(out_of_order, Status::WrongOrder, "layer is 0");
    let mut wide = scene.rows(2);
    assert_error(step.capture(|capture| wide.record(capture, 0)), Status::InvalidShape, "x has shape [2");
    let (mut slice, shape) = (vec![Bf16::ZERO; scene.dim], [1, scene.dim as i64]);
    let mut x = TensorMut::new(&mut slice, &shape).unwrap();
    let in_host_memory = step.capture(|capture| capture.body_in_place(0, &mut x));
    assert_error(in_host_memory, Status::InvalidArgument, "x is not on the model's device");
    // All of it has changed nothing.
    let graph = rows.capture(&mut step, scene.layers());
    rows.put(&[(0, 0)]);
    step.launch(&graph).unwrap();
    assert!(rows.take() == scene.eager(0, 1));
    context.synchronize().unwrap();
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn the_stream_of_an_external_capture_is_its_owners_to_capture() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut rows) = (scene.context(), scene.sequence(), scene.rows(1));
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let result = unsafe { step.capture_external(|capture| rows.record(capture, 0)) };
    assert_error(result, Status::WrongOrder, "not being captured");
    assert_error(unsafe { step.capture_external(|_| Ok(())) }, Status::WrongOrder, "no layer");
    let graph = rows.capture(&mut step, scene.layers());
    rows.put(&[(0, 0)]);
    step.launch(&graph).unwrap();
    context.synchronize().unwrap();
    assert!(rows.take() == scene.eager(0, 1));
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn launches_that_are_refused_change_nothing() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut other) = (scene.context(), scene.sequence(), scene.sequence());
    let (mut rows, mut wide) = (scene.rows(1), scene.rows(9));
    let consumer = |layer: &i32| {
        let role = scene.case.config.role(*layer).unwrap();
        role.ratio > 0 && !role.is_index_source
    };
    let consumer = scene.layers().find(consumer).unwrap();
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let whole = rows.capture(&mut step, scene.layers());
    let part = rows.capture(&mut step, consumer..consumer + 1);
    assert_error(step.launch(&part), Status::WrongOrder, "layer");

    // Of another context, which may be gone.
    let mut foreign = scene.context();
    let mut foreign_step = foreign.decode_prep([Span::new(&mut other, 0, 1)]).unwrap();
    let foreign_graph = rows.capture(&mut foreign_step, 0..1);
    assert_error(step.launch(&foreign_graph), Status::InvalidArgument, "another context");
    drop(foreign);
    assert_error(step.launch(&foreign_graph), Status::WrongOrder, "dropped");

    let spans = [Span::new(&mut sequence, 0, 1), Span::new(&mut other, 0, 1)];
    assert_error(context.decode_prep(spans).unwrap().launch(&whole), Status::InvalidShape, "the step has 2 rows");

    context.set_tap(&[], |_| ()).unwrap();
    assert!(!context.is_capturable(0).unwrap());
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    assert_error(step.launch(&whole), Status::WrongOrder, "tap");
    assert_error(step.capture(|capture| rows.record(capture, 0)), Status::WrongOrder, "tap");
    context.clear_tap().unwrap();

    // A layer has run; the whole has.
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    rows.put(&[(0, 0)]);
    rows.body(&mut step, 0);
    assert_error(step.capture(|capture| rows.record(capture, 1)), Status::WrongOrder, "layer 0");
    assert_error(step.launch(&whole), Status::InvalidPosition, "start_pos");
    sequence.reset().unwrap();
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    step.launch(&whole).unwrap();
    assert!(rows.take() == scene.eager(0, 1));
    assert_error(step.launch(&whole), Status::InvalidPosition, "start_pos");

    // Selections of nine rows lie elsewhere, and a graph that takes one from outside has to be captured again.
    let mut step = context.decode_prep([Span::new(&mut other, 0, 9)]).unwrap();
    wide.put(&[(1, 0); 9]);
    scene.layers().for_each(|layer| wide.body(&mut step, layer));
    let expected = scene.eager(0, 3);
    let mut step = context.decode_prep([Span::new(&mut sequence, 1, 1)]).unwrap();
    rows.put(&[(0, 1)]);
    (0..consumer).for_each(|layer| rows.body(&mut step, layer));
    assert_error(step.launch(&part), Status::WrongOrder, "stale");
    (consumer..scene.n_layers).for_each(|layer| rows.body(&mut step, layer));
    assert!(rows.take()[0] == expected[1]);
    let mut step = context.decode_prep([Span::new(&mut sequence, 2, 1)]).unwrap();
    let part = rows.capture(&mut step, consumer..consumer + 1);
    rows.put(&[(0, 2)]);
    (0..consumer).for_each(|layer| rows.body(&mut step, layer));
    step.launch(&part).unwrap();
    (consumer + 1..scene.n_layers).for_each(|layer| rows.body(&mut step, layer));
    assert!(rows.take()[0] == expected[2]);
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_graph_keeps_its_buffers() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut rows) = (scene.context(), scene.sequence(), scene.rows(1));
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let graph = rows.capture(&mut step, scene.layers());
    let places: Vec<_> = rows.x.iter().chain(&rows.out).map(Buffer::as_device_ptr).collect();
    drop(rows);
    // What is allocated now lies elsewhere, and is not written to.
    let mut others = scene.rows(1);
    assert!(others.x.iter().chain(&others.out).all(|buffer| !places.contains(&buffer.as_device_ptr())));
    others.put(&[]);
    let before = others.take();
    step.launch(&graph).unwrap();
    assert!(others.take() == before);
    assert_eq!(sequence.position(0), Ok(1));
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn objects_end_in_any_order() {
    let scene = Scene::new();
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]] {
        let model = scene.case.model_with(false, &on_sim());
        let mut context = Context::new(&model, ContextOptions::new()).unwrap();
        let mut sequence = Sequence::new(&model).unwrap();
        let mut buffer = Buffer::new(&model, 2 * scene.dim as u64).unwrap();
        let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
        let shape = [1, scene.dim as i64];
        let record =
            |capture: &mut Capture<'_, '_>| capture.body_in_place(0, &mut buffer.tensor_mut(0, Dtype::Bf16, &shape)?);
        let graph = step.capture(record).unwrap();
        buffer.upload(0, &scene.input(0, 0, 0)).unwrap();
        step.launch(&graph).unwrap();
        let (mut model, mut context, mut buffer, mut graph) = (Some(model), Some(context), Some(buffer), Some(graph));
        for object in order {
            match object {
                0 => drop(model.take()),
                1 => drop(context.take()),
                2 => drop(buffer.take()),
                _ => drop(graph.take()),
            }
            if let (Some(context), Some(graph)) = (&mut context, &graph) {
                sequence.reset().unwrap();
                context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap().launch(graph).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_graph_may_be_dropped_while_its_context_captures_or_runs() {
    let scene = Scene::new();
    let (mut context, mut sequence, mut rows) = (scene.context(), scene.sequence(), scene.rows(1));
    let expected = scene.eager(0, 10);
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let mut first = Some(rows.capture(&mut step, scene.layers()));
    let graph = step.capture(|capture| {
        drop(first.take());
        scene.layers().try_for_each(|layer| rows.record(capture, layer))
    });
    let graph = graph.unwrap();
    for token in 0..10 {
        rows.put(&[(0, token)]);
        let mut step = context.decode_prep([Span::new(&mut sequence, token, 1)]).unwrap();
        let spare = rows.capture(&mut step, scene.layers());
        std::thread::scope(|scope| {
            scope.spawn(move || drop(spare));
            step.launch(&graph).unwrap();
        });
        assert!(rows.take()[0] == expected[token as usize], "token {token}");
    }
    // Context and graph go together to another thread.
    let moved = std::thread::scope(|scope| {
        let launch = move || {
            let mut step = context.decode_prep([Span::new(&mut sequence, 10, 1)])?;
            step.launch(&graph)?;
            sequence.position(0)
        };
        scope.spawn(launch).join().unwrap()
    });
    assert_eq!(moved, Ok(11));
}

/// Bytes of the process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
#[cfg(target_os = "linux")]
fn what_graphs_kept_is_given_back() {
    let scene = Scene::new();
    let (mut context, mut sequence) = (scene.context(), scene.sequence());
    let (n_bytes, shape) = (4 << 20, [1, scene.dim as i64]);
    let before = resident();
    for _ in 0..100 {
        let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
        let mut buffer = Buffer::new(&scene.model, n_bytes).unwrap();
        buffer.upload(0, &vec![1u8; n_bytes as usize]).unwrap();
        let record =
            |capture: &mut Capture<'_, '_>| capture.body_in_place(0, &mut buffer.tensor_mut(0, Dtype::Bf16, &shape)?);
        let graph = step.capture(record).unwrap();
        drop(buffer);
        drop(graph);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes have come of buffers of {} bytes", 400 << 20);

    let mut rows = scene.rows(1);
    let before = resident();
    for _ in 0..2000 {
        let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
        rows.capture(&mut step, scene.layers());
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 30 << 20, "{grown} bytes have stayed of graphs of more than 40000 bytes each");
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn every_split_of_the_attention_gives_the_same_bits() {
    let scene = Scene::new();
    let expected = scene.eager(0, 6);
    for split in [1, 3, 8] {
        let mut context = Context::new(&scene.model, ContextOptions::new().attention_split(split)).unwrap();
        let (mut sequence, mut rows) = (scene.sequence(), scene.rows(1));
        let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
        let graph = rows.capture(&mut step, scene.layers());
        for token in 0..6 {
            rows.put(&[(0, token)]);
            context.decode_prep([Span::new(&mut sequence, token, 1)]).unwrap().launch(&graph).unwrap();
            assert!(rows.take()[0] == expected[token as usize], "split {split}, token {token}");
        }
    }
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn a_log_is_kept_by_what_a_graph_keeps() {
    let log = Arc::new(());
    let kept = log.clone();
    let scene = Scene::new();
    let options = on_sim().log(move |_, _| {
        let _ = &kept;
    });
    let other = scene.case.model_with(false, &options);
    drop(options);
    let mut buffer = Buffer::new(&other, 2 * scene.dim as u64).unwrap();
    let (mut context, mut sequence) = (scene.context(), scene.sequence());
    let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    let shape = [1, scene.dim as i64];
    let graph = step.capture(|capture| capture.body_in_place(0, &mut buffer.tensor_mut(0, Dtype::Bf16, &shape)?));
    drop((other, buffer));
    assert_eq!(Arc::strong_count(&log), 2);
    drop(graph.unwrap());
    assert_eq!(Arc::strong_count(&log), 1);
}
