//! load: make a model of a checkpoint's layers, run a prompt of 12 tokens through it, then one more.
//!
//! As in quickstart a layer's output is the next layer's input. Usage: load CHECKPOINT
use ds41::{Bf16, Context, ContextOptions, LoadOptions, Model, Result, Sequence, Span, TensorMut};
use std::process::ExitCode;

const N: usize = 12;

fn run(path: &str) -> Result<()> {
    let model = Model::load(path, LoadOptions::new().map(true))?;
    let mut context = Context::new(&model, ContextOptions::new())?;
    let mut sequence = Sequence::new(&model)?;
    let (dim, n_layers) = (model.config()?.dim as usize, model.config()?.n_layers);
    let mut rows = vec![Bf16::from_f32(0.5); N * dim]; // of the prompt: layers may work in place
    for layer in 0..n_layers {
        let mut x = TensorMut::new(&mut rows, &[N as i64, dim as i64])?;
        context.prefill_in_place(layer, &mut sequence, &mut x, 0)?;
    }
    let next = &mut rows[(N - 1) * dim..];
    let mut step = context.decode_prep([Span::new(&mut sequence, N as i64, 1)])?;
    for layer in 0..n_layers {
        step.body_in_place(layer, &mut TensorMut::new(next, &[1, dim as i64])?)?;
    }
    println!("{n_layers} layers, {} tokens, cache of {} bytes", sequence.position(0)?, sequence.n_bytes());
    println!("{:?} ...", &next[..4]);
    Ok(())
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: load CHECKPOINT");
        return ExitCode::FAILURE;
    };
    match run(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load failed: {error}");
            ExitCode::FAILURE
        }
    }
}
