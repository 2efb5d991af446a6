//! Closures that the library calls, what they are told, and what becomes of their panics.
mod support;

use ds41::*;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use support::{bits, checkpoint, Case};

/// What a closure panicked with.
#[track_caller]
fn panic_of(closure: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(closure)).expect_err("nothing panics");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a panic with text").to_string(),
    }
}

#[test]
fn the_log_is_told_what_a_model_has_to_say() {
    let case = Case::load("a_golden_stable");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = lines.clone();
    let options = ModelOptions::new().log(move |level, line| log.lock().unwrap().push((level, line.to_owned())));
    let model = case.model_with(false, &options);
    assert!(
        lines.lock().unwrap().iter().any(|(level, line)| *level == LogLevel::Info && line.contains(model.backend())),
        "{lines:?}"
    );
    drop(options);
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    case.run_on(&model, &mut context, None);
    drop(model);
    assert_eq!(Arc::strong_count(&lines), 2, "the context still keeps the closure");
    drop(context);
    assert_eq!(Arc::strong_count(&lines), 1, "nobody keeps the closure any more");
}

#[test]
fn a_panic_in_the_log_goes_on_behind_the_call() {
    let options = ModelOptions::new().log(|_, line| panic!("log: {line}"));
    let config = Config::flash();
    let text = panic_of(|| drop(ModelBuilder::new(&config, &options)));
    assert!(text.starts_with("log: "), "{text}");
    ModelBuilder::new(&config, &ModelOptions::new()).unwrap();
}

#[test]
fn the_log_must_not_call_the_library() {
    let options = ModelOptions::new().log(|_, _| drop(Config::flash().validate()));
    let text = panic_of(|| drop(ModelBuilder::new(&Config::flash(), &options)));
    assert!(text.contains("must not call back"), "{text}");
}

#[test]
fn progress_counts_up_to_the_total() {
    let folder = checkpoint("a_golden_stable");
    let mut calls = Vec::new();
    let options = LoadOptions::new().progress(|progress| {
        calls.push((progress.n_done, progress.n_total, progress.tensor.to_owned()));
        ControlFlow::Continue(())
    });
    Model::load(folder.path(), options).unwrap();
    assert_eq!(calls.first().unwrap().0, 0);
    let (n_done, n_total, _) = calls.last().unwrap();
    assert!(n_done == n_total && *n_total > 0);
    assert!(calls.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    assert!(calls.iter().any(|(_, _, tensor)| tensor.starts_with("layers.")));
}

#[test]
fn progress_cancels() {
    let folder = checkpoint("a_golden_stable");
    let mut n_calls = 0;
    let options = LoadOptions::new().progress(|_| {
        n_calls += 1;
        ControlFlow::Break(())
    });
    let error = Model::load(folder.path(), options).unwrap_err();
    assert_eq!(error.status(), Status::Cancelled, "{error}");
    assert_eq!(n_calls, 1);
}

#[test]
fn a_panic_in_progress_cancels_and_goes_on() {
    let folder = checkpoint("a_golden_stable");
    let n_calls = AtomicUsize::new(0);
    let options = LoadOptions::new().progress(|_| {
        n_calls.fetch_add(1, Ordering::Relaxed);
        panic!("enough")
    });
    assert_eq!(panic_of(|| drop(Model::load(folder.path(), options))), "enough");
    assert_eq!(n_calls.load(Ordering::Relaxed), 1);
    Model::load(folder.path(), LoadOptions::new()).unwrap();
}

#[test]
fn progress_may_use_the_library_on_other_objects() {
    let folder = checkpoint("a_golden_stable");
    let options = LoadOptions::new().progress(|_| {
        assert_eq!(Config::flash().role(99).unwrap_err().status(), Status::InvalidLayer);
        ControlFlow::Continue(())
    });
    Model::load(folder.path(), options).unwrap();
}

fn run_layer(case: &Case, model: &Model<'_>, context: &mut Context<'_>) -> Vec<Bf16> {
    let mut sequence = Sequence::new(model).unwrap();
    let mut rows = case.input(0, 0);
    let mut x = TensorMut::new(&mut rows, &[case.steps[0].n_tokens, case.config.dim as i64]).unwrap();
    context.prefill_in_place(0, &mut sequence, &mut x, 0).unwrap();
    rows
}

#[test]
fn taps_are_set_replaced_and_cleared() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let names = Arc::new(Mutex::new(Vec::new()));
    let tap = |names: &Arc<Mutex<Vec<_>>>| {
        let names = names.clone();
        move |tap: Tap<'_>| names.lock().unwrap().push(tap.name)
    };
    context.set_tap(&["q", "ring"], tap(&names)).unwrap();
    context.set_tap(&["no such tap"], |_| panic!("replaced")).unwrap_err();
    run_layer(&case, &model, &mut context);
    assert_eq!(std::mem::take(&mut *names.lock().unwrap()), ["q", "ring"]);
    context.set_tap(&[], tap(&names)).unwrap();
    run_layer(&case, &model, &mut context);
    assert_eq!(std::mem::take(&mut *names.lock().unwrap()), ["q", "kv_rows", "idx", "o", "ring"]);
    assert_eq!(Arc::strong_count(&names), 2, "the replaced closure is gone");
    context.clear_tap().unwrap();
    run_layer(&case, &model, &mut context);
    assert!(names.lock().unwrap().is_empty());
    assert_eq!(Arc::strong_count(&names), 1);
}

#[test]
fn a_tap_lends_the_values() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    let expected = case.tensor("step0.layer0.idx").unwrap().to_vec::<i32>().unwrap();
    let n_tokens = case.steps[0].n_tokens;
    context
        .set_tap(&["idx"], move |tap| {
            assert_eq!((tap.layer, tap.span, i64::from(tap.n_tokens), tap.start_pos), (0, 0, n_tokens, 0));
            assert_eq!(tap.tensor.as_slice::<i32>().unwrap(), expected);
            assert_eq!(tap.tensor.as_slice::<f32>().unwrap_err().status(), Status::InvalidDtype);
        })
        .unwrap();
    run_layer(&case, &model, &mut context);
}

#[test]
fn a_panic_in_a_tap_goes_on_behind_the_layer() {
    let case = Case::load("a_golden_stable");
    let model = case.model();
    let mut context = Context::new(&model, ContextOptions::new()).unwrap();
    context.set_tap(&["q"], |_| panic!("seen enough")).unwrap();
    assert_eq!(panic_of(|| drop(run_layer(&case, &model, &mut context))), "seen enough");
    context.clear_tap().unwrap();
    run_layer(&case, &model, &mut context);
}

fn with_parallel(case: &Case, model: &Model<'_>, parallel: impl FnMut(&Tasks<'_>) + Send + 'static) -> Vec<u16> {
    let options = ContextOptions::new().n_threads(4).parallel(parallel);
    bits(&case.run_on(model, &mut Context::new(model, options).unwrap(), None))
}

#[test]
fn outputs_do_not_depend_on_a_parallel_for_of_the_caller() {
    // Large enough to be shared.
    let case = Case::load("c_production_heads");
    let model = case.model();
    let expected = bits(&case.run(&model, None));
    let n_tasks = Arc::new(AtomicUsize::new(0));
    let count = n_tasks.clone();
    let in_order = move |tasks: &Tasks<'_>| {
        count.fetch_max(tasks.len(), Ordering::Relaxed);
        (0..tasks.len()).for_each(|index| tasks.run(index));
    };
    assert!(expected == with_parallel(&case, &model, in_order));
    let n_most = n_tasks.load(Ordering::Relaxed);
    assert!((2..=4).contains(&n_most), "{n_most} tasks at most");
    assert_eq!(Arc::strong_count(&n_tasks), 1, "the closure ends with its context");
    let at_once = |tasks: &Tasks<'_>| {
        std::thread::scope(|scope| {
            (0..tasks.len()).for_each(|index| drop(scope.spawn(move || tasks.run(index))));
        });
    };
    assert!(expected == with_parallel(&case, &model, at_once));
    let leaves_out_all_but_one = |tasks: &Tasks<'_>| tasks.run(tasks.len() - 1);
    assert!(expected == with_parallel(&case, &model, leaves_out_all_but_one));
}

#[test]
fn tasks_run_once() {
    let case = Case::load("c_production_heads");
    let model = case.model();
    let twice = |tasks: &Tasks<'_>| {
        tasks.run(0);
        tasks.run(0);
    };
    assert_eq!(panic_of(|| drop(with_parallel(&case, &model, twice))), "task 0 has been run");
    let beyond = |tasks: &Tasks<'_>| tasks.run(tasks.len());
    assert!(panic_of(|| drop(with_parallel(&case, &model, beyond))).ends_with("does not exist"));
}
