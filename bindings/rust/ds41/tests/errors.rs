//! Each status that can be provoked, as the error that it becomes, with a sentence that names what was wrong.
mod support;

use ds41::*;
use support::{checkpoint, Case, Folder};

#[track_caller]
fn assert_error<T>(result: Result<T>, status: Status, words: &str) {
    let error = result.err().expect("the call succeeds");
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(words), "{error:?} does not say {words:?}");
    assert_eq!(error.to_string(), error.message());
}

struct Ready {
    case: Case,
    model: Model<'static>,
    context: Context<'static>,
    sequence: Sequence<'static>,
    dim: i64,
}

fn ready() -> Ready {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let context = Context::new(&model, ContextOptions::new().n_threads(1)).unwrap();
    let (sequence, dim) = (Sequence::new(&model).unwrap(), case.config.dim as i64);
    Ready { case, model, context, sequence, dim }
}

impl Ready {
    fn prefill(&mut self, layer: i32, n: i64, start_pos: i64) -> Result<()> {
        let mut rows = vec![Bf16::from_f32(0.25); (n * self.dim) as usize];
        let mut x = TensorMut::new(&mut rows, &[n, self.dim]).unwrap();
        self.context.prefill_in_place(layer, &mut self.sequence, &mut x, start_pos)
    }
}

#[test]
fn invalid_argument() {
    let mut ready = ready();
    assert_error(Buffer::new(&ready.model, 0), Status::InvalidArgument, "n_bytes is 0");
    let threads = ContextOptions::new().n_threads(-1);
    assert_error(Context::new(&ready.model, threads), Status::InvalidArgument, "options.n_threads is -1");
    let split = ContextOptions::new().attention_split(9);
    assert_error(Context::new(&ready.model, split), Status::InvalidArgument, "options.attention_split is 9");
    let stream = unsafe { ContextOptions::new().stream(8 as *mut _) };
    assert_error(Context::new(&ready.model, stream), Status::InvalidArgument, "options.stream is set");
    let options = LoadOptions::new().n_threads(-3);
    let folder = checkpoint("a_golden_stable");
    assert_error(Model::load(folder.path(), options), Status::InvalidArgument, "options.n_threads is -3");
    assert_error(ready.context.set_tap(&["idx", "nothing"], |_| ()), Status::InvalidArgument, "nothing");
    assert_error(ready.context.decode_prep([]), Status::InvalidArgument, "n_spans is 0");
    let mut sequence = Sequence::new(&ready.model).unwrap();
    let spans = [Span::new(&mut sequence, 0, 0)];
    assert_error(ready.context.decode_prep(spans), Status::InvalidArgument, "spans[0].n_tokens is 0");
    assert_error(ready.sequence.reserve(-1), Status::InvalidArgument, "n_positions is -1");
    assert_error(ready.model.estimate_memory(-1, 1, 1), Status::InvalidArgument, "n_seqs is -1");
}

#[test]
fn a_sequence_of_another_model() {
    let mut ready = ready();
    let other = ready.case.model();
    ready.sequence = Sequence::new(&other).unwrap();
    assert_error(ready.prefill(0, 1, 0), Status::InvalidArgument, "seq belongs to another model");
    let spans = [Span::new(&mut ready.sequence, 0, 1)];
    assert_error(ready.context.decode_prep(spans), Status::InvalidArgument, "spans[0].seq belongs to another model");
}

#[test]
fn strings_with_a_nul_byte() {
    let ready = ready();
    assert_error(File::load("a\0b"), Status::InvalidArgument, "path \"a\\0b\" has a NUL byte at 1");
    let options = ModelOptions::new().backend("cp\0u");
    assert_error(ModelBuilder::new(&ready.case.config, &options), Status::InvalidArgument, "backend");
    let mut context = ready.context;
    assert_error(context.set_tap(&["i\0"], |_| ()), Status::InvalidArgument, "tap");
}

#[test]
fn invalid_struct() {
    // Not from this crate, which initialises its structs: the number alone.
    let status = unsafe { ds41_sys::ds41_config_validate(&std::mem::zeroed()) };
    assert_eq!(status.0, Status::InvalidStruct.code());
}

#[test]
fn invalid_dtype() {
    let mut ready = ready();
    let (wrong, mut right) = (vec![0.0f32; ready.dim as usize], vec![Bf16::ZERO; ready.dim as usize]);
    let x = Tensor::new(&wrong, &[1, ready.dim]).unwrap();
    let mut out = TensorMut::new(&mut right, &[1, ready.dim]).unwrap();
    let result = ready.context.prefill(0, &mut ready.sequence, &x, 0, &mut out);
    assert_error(result, Status::InvalidDtype, "x has dtype F32, need BF16");
    let (right, mut wrong) = (vec![Bf16::ZERO; ready.dim as usize], vec![0i32; ready.dim as usize]);
    let x = Tensor::new(&right, &[1, ready.dim]).unwrap();
    let mut out = TensorMut::new(&mut wrong, &[1, ready.dim]).unwrap();
    let result = ready.context.prefill(0, &mut ready.sequence, &x, 0, &mut out);
    assert_error(result, Status::InvalidDtype, "out has dtype I32, need BF16");
    assert_error(x.as_slice::<f32>(), Status::InvalidDtype, "BF16, which is not F32");
    assert_error(Tensor::from_bytes(Dtype::None, &[], &[1]), Status::InvalidDtype, "NONE");
    assert_error(Tensor::from_bytes(Dtype::Unknown(99), &[], &[1]), Status::InvalidDtype, "99");
}

#[test]
fn invalid_shape() {
    let mut ready = ready();
    let rows = vec![Bf16::ZERO; 2 * ready.dim as usize];
    let mut out = rows.clone();
    for shape in [vec![1, 2 * ready.dim], vec![ready.dim, 2], vec![2 * ready.dim], vec![1, 2, ready.dim]] {
        let x = Tensor::new(&rows, &shape).unwrap();
        let mut out = TensorMut::new(&mut out, &[2, ready.dim]).unwrap();
        let result = ready.context.prefill(0, &mut ready.sequence, &x, 0, &mut out);
        assert_error(result, Status::InvalidShape, "has shape [");
    }
    // A slice is as long as its shape: nothing is read beyond it, and no stride skips a part of it.
    let (elements, n) = (2 * ready.dim, rows.len() * 2);
    let message = format!("data has {n} bytes, need {} (BF16 [3, {}])", 3 * ready.dim * 2, ready.dim);
    assert_error(Tensor::new(&rows, &[3, ready.dim]), Status::InvalidShape, &message);
    assert_error(TensorMut::new(&mut out, &[1, ready.dim]), Status::InvalidShape, "data has");
    assert_error(Tensor::new(&rows, &[-1, ready.dim]), Status::InvalidShape, "-1");
    assert_error(Tensor::new(&rows, &[i64::MAX, i64::MAX]), Status::InvalidShape, "");
    assert_error(Tensor::new(&rows, &[]), Status::InvalidShape, "n_dims is 0");
    assert_error(Tensor::new(&rows, &[1, 1, 1, 1, elements]), Status::InvalidShape, "n_dims is 5");
    let (nothing, mut out) = (Tensor::new::<Bf16>(&[], &[0, ready.dim]).unwrap(), out);
    let mut out = TensorMut::new(&mut out, &[2, ready.dim]).unwrap();
    let result = ready.context.prefill(0, &mut ready.sequence, &nothing, 0, &mut out);
    assert_error(result, Status::InvalidArgument, "n_tokens is 0");
    assert_error(Tensor::q2_k(&[0; 84], 1, 255), Status::InvalidShape, "256");
    assert_error(Tensor::fp8(&[0; 64], &[], 1, 64), Status::InvalidShape, "scales has 0 bytes, need 2");
}

#[test]
fn invalid_layer() {
    let mut ready = ready();
    let n = ready.case.config.compress_ratios.len() as i32;
    assert_error(ready.case.config.role(n), Status::InvalidLayer, "layer is");
    assert_error(ready.sequence.position(n), Status::InvalidLayer, "layer is");
    assert_error(ready.prefill(-1, 1, 0), Status::InvalidLayer, "layer is -1");
    assert_error(ready.context.is_capturable(n), Status::InvalidLayer, "layer is");
    let folder = checkpoint("a_golden_stable");
    assert_error(Model::load(folder.path(), LoadOptions::new().layers(n, 1)), Status::InvalidLayer, "layer");
}

#[test]
fn invalid_position() {
    let mut ready = ready();
    assert_error(ready.prefill(0, 2, 5), Status::InvalidPosition, "start_pos is 5");
    ready.prefill(0, 2, 0).unwrap();
    assert_error(ready.prefill(0, 2, 0), Status::InvalidPosition, "start_pos is 0");
    let spans = [Span::new(&mut ready.sequence, 7, 1)];
    assert_error(ready.context.decode_prep(spans), Status::InvalidPosition, "spans[0].start_pos is 7");
}

#[test]
fn invalid_config() {
    assert_error(Config::default().validate(), Status::InvalidConfig, "n_layers is 0");
    let flash = Config::flash();
    let with = |change: fn(&mut Config)| {
        let mut config = flash.clone();
        change(&mut config);
        ModelBuilder::new(&config, &ModelOptions::new())
    };
    assert_error(with(|config| config.o_groups = 7), Status::InvalidConfig, "n_heads is 64");
    // Lists that are longer than the C struct's arrays are refused by their length.
    assert_error(with(|config| config.compress_ratios = vec![0; 300]), Status::InvalidConfig, "300");
    assert_error(with(|config| config.kv_source_layers = vec![2; 1000]), Status::InvalidConfig, "1000");
    assert_error(with(|config| config.index_source_layers = vec![2; 257]), Status::InvalidConfig, "257");
}

#[test]
fn wrong_order() {
    let mut ready = ready();
    let mut x = vec![Bf16::ZERO; ready.dim as usize];
    let mut x = TensorMut::new(&mut x, &[1, ready.dim]).unwrap();
    let mut step = ready.context.decode_prep([Span::new(&mut ready.sequence, 0, 1)]).unwrap();
    let consumer = (0..).find(|layer| ready.case.config.role(*layer).unwrap().ratio > 0).unwrap() + 1;
    assert_error(step.body_in_place(consumer, &mut x), Status::WrongOrder, "layer");
    step.body_in_place(1, &mut x).unwrap();
    assert_error(step.body_in_place(0, &mut x), Status::WrongOrder, "layer");
}

#[test]
fn missing_weights() {
    let mut ready = ready();
    ready.model = ModelBuilder::new(&ready.case.config, &ModelOptions::new()).unwrap().build();
    ready.context = Context::new(&ready.model, ContextOptions::new()).unwrap();
    ready.sequence = Sequence::new(&ready.model).unwrap();
    assert_error(ready.prefill(0, 1, 0), Status::MissingWeights, "layer 0");
    let spans = [Span::new(&mut ready.sequence, 0, 1)];
    assert_error(ready.context.decode_prep(spans), Status::MissingWeights, "no layer with weights");
}

#[test]
fn weights_that_a_layer_does_not_take() {
    let case = Case::load("a_golden_stable");
    let mut builder = ModelBuilder::new(&case.config, &ModelOptions::new()).unwrap();
    let right = case.weights(0, false);
    let mut set = |weights: LayerWeights<'_>| builder.set_layer(0, &weights);
    assert_error(set(LayerWeights { wkv: None, ..right }), Status::InvalidArgument, "wkv");
    assert_error(set(LayerWeights { indexer_wk: right.wkv, ..right }), Status::InvalidArgument, "indexer_wk");
    assert_error(set(LayerWeights { wq_a: right.wq_b, ..right }), Status::InvalidShape, "wq_a of layer 0 has shape");
    let bytes = [0u8; 4];
    let sink = Some(Tensor::new(&bytes, &[4]).unwrap());
    assert_error(
        set(LayerWeights { attn_sink: sink, ..right }),
        Status::InvalidDtype,
        "attn_sink of layer 0 has dtype U8",
    );
    let nan = [f32::NAN; 4];
    let sink = Some(Tensor::new(&nan, &[4]).unwrap());
    assert_error(set(LayerWeights { attn_sink: sink, ..right }), Status::InvalidArgument, "attn_sink");
    let buffer_model = case.model();
    let buffer = Buffer::new(&buffer_model, 16).unwrap();
    let sink = Some(buffer.tensor(0, Dtype::F32, &[4]).unwrap());
    assert_error(set(LayerWeights { attn_sink: sink, ..right }), Status::InvalidArgument, "attn_sink lies in a buffer");
    set(right).unwrap();
    assert_error(builder.set_layer(99, &right), Status::InvalidLayer, "layer is 99");
}

#[test]
fn borrowed_weights_are_aligned() {
    let case = Case::load("a_golden_stable");
    let mut weights = case.weights(0, false);
    let wkv = weights.wkv.unwrap();
    let mut bytes = vec![0; 8];
    bytes.extend(wkv.to_bytes().unwrap());
    let odd = (bytes.as_ptr() as usize + 1) % 2; // an odd address, wherever the vector lies
    bytes.rotate_left(8 - odd);
    let n = bytes.len() - 8;
    weights.wkv = Some(Tensor::from_bytes(Dtype::Bf16, &bytes[odd..odd + n], wkv.shape()).unwrap());
    assert_error(weights.wkv.unwrap().as_slice::<Bf16>(), Status::InvalidArgument, "not aligned");
    let mut builder = ModelBuilder::new(&case.config, &ModelOptions::new()).unwrap();
    assert_error(builder.set_layer_borrowed(0, &weights), Status::InvalidArgument, "wkv");
    builder.set_layer(0, &weights).unwrap();
}

#[test]
fn unsupported() {
    let folder = Folder::new();
    let path = folder.path().join("big-endian.gguf");
    let mut bytes = b"GGUF".to_vec();
    bytes.extend([0, 0, 0, 3]);
    bytes.extend([0; 16]);
    std::fs::write(&path, bytes).unwrap();
    assert_error(Checkpoint::load(&path), Status::Unsupported, "endian");
    for backend in ["cpu", "reference"] {
        let case = Case::load("a_golden_stable");
        let model = case.model_with(false, &ModelOptions::new().backend(backend));
        let (mut context, mut sequence) =
            (Context::new(&model, ContextOptions::new()).unwrap(), Sequence::new(&model).unwrap());
        assert!(!context.is_capturable(0).unwrap());
        let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
        let graph = step.capture(|_| panic!("a capture that has not begun"));
        assert_error(graph, Status::Unsupported, &format!("backend {backend} has no graphs"));
    }
}

#[test]
fn no_backend() {
    let options = ModelOptions::new().backend("abacus");
    assert_error(ModelBuilder::new(&Config::flash(), &options), Status::NoBackend, "abacus");
}

#[test]
fn out_of_memory() {
    let ready = ready();
    assert_error(Buffer::new(&ready.model, 1 << 62), Status::OutOfMemory, "memory");
}

#[test]
fn io_error() {
    assert_error(File::load("/nowhere/x.safetensors"), Status::IoError, "/nowhere/x.safetensors");
    assert_error(Config::load("/nowhere/config.json"), Status::IoError, "/nowhere/config.json");
    assert_error(Checkpoint::load("/nowhere"), Status::IoError, "/nowhere");
    assert_error(Model::load("/nowhere", LoadOptions::new()), Status::IoError, "/nowhere");
}

#[test]
fn invalid_file() {
    assert_error(Config::from_json("no JSON"), Status::InvalidFile, "ds41_config_parse");
    assert_error(Config::from_json("{}"), Status::InvalidFile, "key n_layers is missing");
    let folder = Folder::new();
    let path = folder.path().join("x.safetensors");
    std::fs::write(&path, [255; 20]).unwrap();
    assert_error(File::load(&path), Status::InvalidFile, "x.safetensors");
}

#[test]
fn missing_tensor() {
    let file = File::load(support::fixture("a_golden_stable.safetensors")).unwrap();
    assert_error(file.tensor("layers.0.attn.nothing"), Status::MissingTensor, "layers.0.attn.nothing");
    let folder = checkpoint("a_golden_stable");
    let mut config = Case::load("a_golden_stable").config;
    config.n_layers += 1;
    config.compress_ratios.push(0);
    let result = Model::load(folder.path(), LoadOptions::new().config(&config));
    assert_error(result, Status::MissingTensor, "layers.6.attn.wq_a.weight");
}

#[test]
fn tensors_of_files_and_buffers_are_no_slices() {
    let case = Case::load("a_golden_stable");
    let tensor = case.tensor("step0.layer0.x").unwrap();
    assert_error(tensor.as_slice::<Bf16>(), Status::InvalidArgument, "mapped file");
    let mut ready = ready();
    let mut out = tensor.to_vec::<Bf16>().unwrap();
    let shape = tensor.shape().to_vec();
    let mut out = TensorMut::new(&mut out, &shape).unwrap();
    let result = ready.context.prefill(0, &mut ready.sequence, &tensor, 0, &mut out);
    assert_error(result, Status::InvalidArgument, "x is not on the model's device");
    let buffer = Buffer::new(&ready.model, 8).unwrap();
    let view = buffer.tensor(0, Dtype::Bf16, &[4]).unwrap();
    assert_error(view.as_slice::<Bf16>(), Status::InvalidArgument, "buffer");
    assert_error(view.to_vec::<Bf16>(), Status::InvalidArgument, "download");
    assert_error(case.tensor("layers.0.attn.wkv.weight").unwrap().into_q2_k(), Status::InvalidShape, "BF16 [32, 64]");
}

#[test]
fn parts_that_a_buffer_does_not_have() {
    let ready = ready();
    let mut buffer = Buffer::new(&ready.model, 8).unwrap();
    assert_eq!(buffer.n_bytes(), 8);
    assert_error(buffer.upload(4, &[1.0f32, 2.0]), Status::InvalidArgument, "offset");
    assert_error(buffer.download(u64::MAX, &mut [0u8; 2]), Status::InvalidArgument, "offset");
    assert_error(buffer.tensor(2, Dtype::F32, &[2]), Status::InvalidShape, "F32 [2] has 8 bytes at 2");
    assert_error(buffer.tensor_mut(u64::MAX, Dtype::U8, &[2]), Status::InvalidShape, "U8 [2]");
    assert_error(buffer.tensor(0, Dtype::F32, &[i64::MAX]), Status::InvalidShape, "");
}

#[test]
fn a_failed_step_changes_nothing() {
    let mut ready = ready();
    let mut rows = vec![Bf16::from_f32(0.25); ready.dim as usize];
    let before = rows.clone();
    let mut x = TensorMut::new(&mut rows, &[1, ready.dim]).unwrap();
    ready.context.prefill_in_place(0, &mut ready.sequence, &mut x, 3).unwrap_err();
    assert_eq!(ready.sequence.furthest_position().unwrap(), 0);
    assert_eq!(rows, before);
}
