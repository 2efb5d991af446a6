//! Objects end in any order; memory that is borrowed is there as long as somebody uses it. (What must not compile is in
//! the documentation of the types.)
mod support;

use ds41::*;
use support::{bits, members, Case};

fn works(case: &Case, context: &mut Context<'_>, sequence: &mut Sequence<'_>) {
    let n = case.steps[0].n_tokens;
    let mut rows = case.input(0, 0);
    let mut x = TensorMut::new(&mut rows, &[n, case.config.dim as i64]).unwrap();
    sequence.reset().unwrap();
    context.prefill_in_place(0, sequence, &mut x, 0).unwrap();
    assert_eq!(sequence.position(0).unwrap(), n);
}

#[test]
fn parents_first() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let mut sequence = Sequence::new(&model).unwrap();
    let mut buffer = Buffer::new(&model, 4).unwrap();
    drop(model);
    works(&case, &mut context, &mut sequence);
    buffer.upload(0, &[7i32]).unwrap();
    drop(context);
    assert!(sequence.n_bytes() > 0);
    sequence.reset().unwrap();
    drop(sequence);
    let mut back = [0i32];
    buffer.download(0, &mut back).unwrap();
    assert_eq!(back, [7]);
}

#[test]
fn children_first() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    for _ in 0..2 {
        let mut sequence = Sequence::new(&model).unwrap();
        works(&case, &mut context, &mut sequence);
        drop(sequence); // with the context's step still about it
    }
    drop(context);
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    works(&case, &mut context, &mut Sequence::new(&model).unwrap());
    assert_eq!(model.backend(), "cpu");
}

#[test]
fn clones_are_the_same_model() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let clone = model.clone();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    drop(model);
    works(&case, &mut context, &mut Sequence::new(&clone).unwrap());
}

#[test]
fn a_step_that_is_given_up_leaves_its_sequence_free() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let mut sequence = Sequence::new(&model).unwrap();
    for _ in 0..2 {
        let _ = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
    }
    works(&case, &mut context, &mut sequence);
    let n = case.steps[0].n_tokens;
    let _ = context.decode_prep([Span::new(&mut sequence, n, 1)]).unwrap();
    drop(sequence); // with the step still in flight in C
    works(&case, &mut context, &mut Sequence::new(&model).unwrap());
}

#[test]
fn borrowed_weights_are_used_where_they_are() {
    let case = Case::load("e_fp8_weights");
    let copied = case.model();
    // Aligned copies of the file's tensors: the memory that the model borrows.
    let mut memory: Vec<(Vec<f32>, Vec<u8>)> = Vec::new();
    for layer in case.layers() {
        for tensor in members(&mut case.weights(layer, false)).into_iter().flatten() {
            let bytes = tensor.to_bytes().unwrap();
            let mut aligned = vec![0.0; bytes.len().div_ceil(4)];
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), aligned.as_mut_ptr().cast(), bytes.len()) };
            memory.push((aligned, tensor.scales().map(|(_, bytes)| bytes).unwrap_or_default()));
        }
    }
    let mut next = memory.iter();
    let mut builder = ModelBuilder::new(&case.config, &ModelOptions::new()).unwrap();
    for layer in case.layers() {
        let mut weights = case.weights(layer, false);
        for tensor in members(&mut weights).into_iter().flatten() {
            let (data, scales) = next.next().unwrap();
            let n = tensor.n_bytes().unwrap() as usize;
            let data = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), n) };
            let shape = tensor.shape().to_vec();
            *tensor = match tensor.dtype() {
                Dtype::Fp8E4m3 => Tensor::fp8(data, scales, shape[0], shape[1]).unwrap(),
                dtype => Tensor::from_bytes(dtype, data, &shape).unwrap(),
            };
        }
        builder.set_layer_borrowed(layer, &weights).unwrap();
    }
    let borrowed = builder.build();
    let held = |model: &Model<'_>| model.estimate_memory(1, 1, 1).unwrap().weights;
    assert!(held(&borrowed) * 4 < held(&copied), "{} of {}", held(&borrowed), held(&copied));
    assert!(bits(&case.run(&borrowed, None)) == bits(&case.run(&copied, None)));
}

#[test]
fn weights_borrowed_from_a_file_keep_it() {
    let file = File::load(support::fixture("a_golden_stable.safetensors")).unwrap();
    let config = Config::from_json(&file.metadata("config").unwrap()).unwrap();
    let mut builder = ModelBuilder::new(&config, &ModelOptions::new()).unwrap();
    builder.set_layer_borrowed(0, &LayerWeights::from_file(&file, 0).unwrap()).unwrap();
    let model = builder.build();
    let case = Case::load("a_golden_stable");
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    works(&case, &mut context, &mut Sequence::new(&model).unwrap());
}

#[test]
fn views_see_the_memory_of_their_owner() {
    let mut values = vec![Bf16::from_f32(1.0); 6];
    let tensor = Tensor::new(&values, &[2, 3]).unwrap();
    let copy = tensor; // a view, not the data
    assert_eq!(copy.as_slice::<Bf16>().unwrap().as_ptr(), values.as_ptr());
    assert_eq!((copy.dtype(), copy.shape(), copy.n_bytes().unwrap()), (Dtype::Bf16, &[2, 3][..], 12));
    let out = TensorMut::new(&mut values, &[3, 2]).unwrap();
    assert_eq!((out.dtype(), out.shape()), (Dtype::Bf16, &[3, 2][..]));
    assert_eq!(out.as_tensor().to_vec::<Bf16>().unwrap().len(), 6);
}
