//! Golden cases through this crate: the same bits as the C library gives, the values that the cases expect.
mod support;

use ds41::*;
use std::process::Command;
use std::sync::{Arc, Mutex};
use support::{bits, compile_c, Case, Folder};

const CASES: [&str; 4] = ["a_golden_stable", "b_prefill_9_16_17", "e_fp8_weights", "f_q2k_weights"];

#[test]
fn outputs_are_the_bits_of_the_c_library() {
    let folder = Folder::new();
    let program = folder.path().join("outputs");
    compile_c(std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/outputs.c")), &program);
    for name in CASES {
        let case = Case::load(name);
        for plain in [false, true] {
            let mut command = Command::new(&program);
            command.arg(if plain { "1" } else { "0" }).arg(case.steps.len().to_string());
            for step in &case.steps {
                command.arg(step.start_pos.to_string()).arg(step.n_tokens.to_string());
            }
            let output = command.args(&case.paths).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let in_c: Vec<u16> = output.stdout.chunks(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
            let model = case.model_with(plain, &ModelOptions::new());
            assert!(in_c == bits(&case.run(&model, None)), "{name}, plain activations {plain}");
        }
    }
}

/// "float: |a - b| <= atol_of_max * max + rtol * |b|", both 2^-7 in all cases: tests/fixtures/README.md.
fn assert_close(what: &str, got: &[Bf16], expected: &[Bf16]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().map(|b| b.to_f32().abs()).fold(0.0, f32::max);
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        let (a, b) = (a.to_f32(), b.to_f32());
        let tolerance = (largest + b.abs()) / 128.0;
        assert!((a - b).abs() <= tolerance, "{what}[{i}] is {a}, need {b} within {tolerance}");
    }
}

#[test]
fn outputs_are_those_that_the_cases_expect() {
    // Quantised activations have a rule of their own for single rows; plain ones have the common rule.
    for (name, prefix) in [("a_golden_stable", ""), ("e_fp8_weights", "expanded."), ("f_q2k_weights", "bf16act.")] {
        let case = Case::load(name);
        let model = case.model_with(true, &ModelOptions::new());
        let outputs = case.run(&model, None);
        let mut n_compared = 0;
        for output in &outputs {
            let tensor = format!("step{}.layer{}.{prefix}out", output.step, output.layer);
            let Some(expected) = case.tensor(&tensor) else { continue };
            assert_close(&format!("{name}: {tensor}"), &output.values, &expected.to_vec().unwrap());
            n_compared += 1;
        }
        assert!(n_compared >= 20, "{name}: only {n_compared} tensors were compared");
    }
}

#[test]
fn selections_are_those_that_the_case_expects() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let taps = Arc::new(Mutex::new(Vec::new()));
    let collected = taps.clone();
    context
        .set_tap(&["idx"], move |tap| {
            assert_eq!((tap.name, tap.span), ("idx", 0));
            collected.lock().unwrap().push((tap.start_pos, tap.layer, tap.tensor.to_vec::<i32>().unwrap()));
        })
        .unwrap();
    let tapped = case.run_on(&model, &mut context, None);
    let taps = taps.lock().unwrap();
    assert_eq!(taps.len(), case.steps.len() * case.layers().len());
    for (start_pos, layer, idx) in taps.iter().filter(|(start_pos, ..)| *start_pos == 0) {
        let expected = case.tensor(&format!("step0.layer{layer}.idx")).unwrap();
        assert_eq!(*idx, expected.to_vec::<i32>().unwrap(), "layer {layer} at {start_pos}");
    }
    assert!(bits(&tapped) == bits(&case.run(&model, None)), "a tap changes outputs");
}

#[test]
fn chunks_give_the_bits_of_the_whole() {
    let case = Case::load("b_prefill_9_16_17");
    let model = case.model();
    let whole = bits(&case.run(&model, None));
    for n in [1, 4, 7] {
        assert!(whole == bits(&case.run(&model, Some(n))), "chunks of {n}");
    }
}

#[test]
fn decoding_gives_the_bits_of_a_prefill() {
    let case = Case::load("a_golden_stable");
    let (model, dim) = (case.model(), case.config.dim as i64);
    let n = case.steps[0].n_tokens;
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let (mut first, mut second) = (Sequence::new(&model).unwrap(), Sequence::new(&model).unwrap());
    let inputs: Vec<_> = case.layers().iter().map(|layer| case.input(0, *layer)).collect();
    let mut whole = inputs.clone();
    for layer in case.layers() {
        let mut x = TensorMut::new(&mut whole[layer as usize], &[n, dim]).unwrap();
        context.prefill_in_place(layer, &mut first, &mut x, 0).unwrap();
    }
    for row in 0..n {
        let at = (row * dim) as usize..((row + 1) * dim) as usize;
        let mut step = context.decode_prep([Span::new(&mut second, row, 1)]).unwrap();
        assert!(!step.context().is_capturable(0).unwrap());
        for layer in case.layers() {
            let mut x = inputs[layer as usize][at.clone()].to_vec();
            step.body_in_place(layer, &mut TensorMut::new(&mut x, &[1, dim]).unwrap()).unwrap();
            let expected = &whole[layer as usize][at.clone()];
            assert!(x.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "token {row}, layer {layer}");
        }
    }
    assert_eq!(first.position(0).unwrap(), second.furthest_position().unwrap());
}

#[test]
fn a_step_of_two_sequences_gives_the_bits_of_each_alone() {
    let case = Case::load("a_golden_stable");
    let (model, dim) = (case.model(), case.config.dim as usize);
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let shape = |n: usize| [n as i64, dim as i64];
    let prefilled = |context: &mut Context<'_>, n: usize| {
        let mut sequence = Sequence::new(&model).unwrap();
        for layer in case.layers() {
            let mut x = case.input(0, layer)[..n * dim].to_vec();
            let mut x = TensorMut::new(&mut x, &shape(n)).unwrap();
            context.prefill_in_place(layer, &mut sequence, &mut x, 0).unwrap();
        }
        sequence
    };
    let alone = |context: &mut Context<'_>, n: usize, n_new: usize| -> Vec<Vec<Bf16>> {
        let mut sequence = prefilled(context, n);
        let mut step = context.decode_prep([Span::new(&mut sequence, n as i64, n_new as i32)]).unwrap();
        let run = |layer| {
            let mut x = case.input(0, layer)[..n_new * dim].to_vec();
            step.body_in_place(layer, &mut TensorMut::new(&mut x, &shape(n_new)).unwrap()).unwrap();
            x
        };
        case.layers().into_iter().map(run).collect()
    };
    let (first, second) = (alone(&mut context, 5, 1), alone(&mut context, 9, 2));
    let (mut a, mut b) = (prefilled(&mut context, 5), prefilled(&mut context, 9));
    let mut step = context.decode_prep([Span::new(&mut a, 5, 1), Span::new(&mut b, 9, 2)]).unwrap();
    for (i, layer) in case.layers().into_iter().enumerate() {
        let input = case.input(0, layer);
        let mut x = [&input[..dim], &input[..2 * dim]].concat();
        step.body_in_place(layer, &mut TensorMut::new(&mut x, &shape(3)).unwrap()).unwrap();
        let expected = [&first[i][..], &second[i][..]].concat();
        assert!(x.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "layer {layer}");
    }
}

#[test]
fn buffers_give_the_bits_of_slices() {
    let case = Case::load("a_golden_stable");
    let (model, shape) = (case.model(), [case.steps[0].n_tokens, case.config.dim as i64]);
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let mut sequence = Sequence::new(&model).unwrap();
    let expected = case.run(&model, None);
    for layer in case.layers() {
        let input = case.input(0, layer);
        let n_bytes = input.len() as u64 * 2;
        let mut x = Buffer::new(&model, n_bytes + 64).unwrap();
        let mut out = Buffer::new(&model, n_bytes).unwrap();
        x.upload(64, &input).unwrap();
        let view = x.tensor(64, Dtype::Bf16, &shape).unwrap();
        let mut out_view = out.tensor_mut(0, Dtype::Bf16, &shape).unwrap();
        context.prefill(layer, &mut sequence, &view, 0, &mut out_view).unwrap();
        context.synchronize().unwrap();
        let mut values = vec![Bf16::NAN; input.len()];
        out.download(0, &mut values).unwrap();
        let expected = &expected[layer as usize].values;
        assert!(values.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "layer {layer}");
    }
}

#[test]
fn a_loaded_checkpoint_gives_the_bits_of_the_case() {
    for name in ["a_golden_stable", "e_fp8_weights"] {
        let case = Case::load(name);
        let folder = support::checkpoint(name);
        let expected = bits(&case.run(&case.model(), None));
        for map in [false, true] {
            let model = Model::load(folder.path(), LoadOptions::new().map(map).n_threads(1)).unwrap();
            assert_eq!(model.config().unwrap(), case.config);
            assert!(expected == bits(&case.run(&model, None)), "{name}, mapped {map}");
        }
        let expanded = Model::load(folder.path(), LoadOptions::new().expand_fp8(true)).unwrap();
        let plain = case.model_with(true, &ModelOptions::new());
        assert!(bits(&case.run(&expanded, None)) == bits(&case.run(&plain, None)), "{name}, expanded");
    }
}
