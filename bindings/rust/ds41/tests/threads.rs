//! One model, several threads.
mod support;

use ds41::*;
use std::sync::Barrier;
use support::{bits, Case};

#[test]
fn what_may_cross_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<Model<'_>>();
    sync::<Model<'_>>();
    send::<ModelBuilder<'_>>();
    send::<Checkpoint>();
    sync::<Checkpoint>();
    send::<File>();
    sync::<File>();
    send::<Context<'_>>();
    send::<Sequence<'_>>();
    send::<Buffer<'_>>();
    send::<Graph<'_>>();
    send::<Tensor<'_>>();
    sync::<Tensor<'_>>();
    send::<TensorMut<'_>>();
    send::<Error>();
    sync::<Error>();
}

#[test]
fn two_threads_on_one_model_give_the_bits_of_one() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let expected = bits(&case.run(&model, None));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for n_threads in [1, 2] {
            let (case, model, expected, start) = (&case, &model, &expected, &start);
            scope.spawn(move || {
                let options = ContextOptions::new().n_threads(n_threads).pin_threads(n_threads > 1);
                let mut context = Context::new(model, options).unwrap();
                start.wait();
                for _ in 0..5 {
                    assert!(*expected == bits(&case.run_on(model, &mut context, Some(3))));
                }
            });
        }
    });
}

#[test]
fn contexts_and_sequences_move_between_threads() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let (n, dim) = (case.steps[0].n_tokens, case.config.dim as i64);
    let run = |mut context: Context<'static>, mut sequence: Sequence<'static>, layer: i32| {
        let mut rows = case.input(0, layer);
        let mut x = TensorMut::new(&mut rows, &[n, dim]).unwrap();
        context.prefill_in_place(layer, &mut sequence, &mut x, 0).unwrap();
        (context, sequence, rows)
    };
    let mut objects = (Context::new(&model, ContextOptions::new()).unwrap(), Sequence::new(&model).unwrap());
    let expected = case.run(&model, None);
    for layer in case.layers() {
        let (context, sequence) = objects;
        let (context, sequence, rows) =
            std::thread::scope(|scope| scope.spawn(|| run(context, sequence, layer)).join().unwrap());
        let same = rows.iter().zip(&expected[layer as usize].values).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "layer {layer}");
        objects = (context, sequence);
    }
    std::thread::spawn(move || drop(objects)).join().unwrap();
}

#[test]
fn each_thread_reads_its_own_sentence() {
    let (first, second) = (Barrier::new(2), Barrier::new(2));
    let (first, second) = (&first, &second);
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            scope.spawn(move || {
                for _ in 0..50 {
                    first.wait();
                    let error = ModelBuilder::new(&Config::flash(), &ModelOptions::new().backend(name)).unwrap_err();
                    assert!(error.message().contains(name), "{error}");
                    second.wait();
                }
            });
        }
    });
}
