//! captured: decode tokens of two sequences through all layers of a checkpoint; where the backend has graphs, each step
//! is one launch.
//!
//! The layers work in place on the same rows, to keep this short: a real model captures on a stream of its own, with
//! the norms and the MoE in between (`capture_external`). Usage: captured PATH [BACKEND]
use ds41::{Bf16, Buffer, Context, ContextOptions, Dtype, LoadOptions, Model, ModelOptions, Result, Sequence, Span};
use std::process::ExitCode;

const N_SEQS: usize = 2;
const N_TOKENS: i64 = 8;

fn run(path: &str, backend: &str) -> Result<()> {
    let model = Model::load(path, LoadOptions::new().model(ModelOptions::new().backend(backend)))?;
    let config = model.config()?;
    let mut context = Context::new(&model, ContextOptions::new())?;
    let (mut a, mut b) = (Sequence::new(&model)?, Sequence::new(&model)?);

    let n_values = N_SEQS * config.dim as usize;
    let value = |i: usize| Bf16::from_bits(((i & 1) << 15 | (0x3e00 + i * 37 % 256)) as u16);
    let mut rows: Vec<Bf16> = (0..n_values).map(value).collect();
    let mut buffer = Buffer::new(&model, std::mem::size_of_val(&rows[..]) as u64)?;
    let shape = [N_SEQS as i64, config.dim.into()];

    let mut capturable = true;
    for layer in 0..config.n_layers {
        capturable &= context.is_capturable(layer)?;
    }
    let mut graph = None;
    for position in 0..N_TOKENS {
        buffer.upload(0, &rows)?;
        let mut x = buffer.tensor_mut(0, Dtype::Bf16, &shape)?;
        let mut step = context.decode_prep([Span::new(&mut a, position, 1), Span::new(&mut b, position, 1)])?;
        if capturable && graph.is_none() {
            // Once; the capture runs nothing.
            graph =
                Some(step.capture(|capture| {
                    (0..config.n_layers).try_for_each(|layer| capture.body_in_place(layer, &mut x))
                })?);
        }
        match &graph {
            Some(graph) => step.launch(graph)?,
            None => (0..config.n_layers).try_for_each(|layer| step.body_in_place(layer, &mut x))?,
        }
        buffer.download(0, &mut rows)?; // the next tokens
    }
    let how = if graph.is_some() { "captured" } else { "layer by layer" };
    let (backend, last) = (model.backend(), rows[n_values - 1].to_bits());
    println!("backend {backend}, {how}: {N_TOKENS} tokens of {N_SEQS} sequences, last value {last:04x}");
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(path) = arguments.get(1) else {
        eprintln!("usage: captured PATH [BACKEND]");
        return ExitCode::FAILURE;
    };
    match run(path, arguments.get(2).map_or("auto", String::as_str)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("captured: {error}");
            ExitCode::FAILURE
        }
    }
}
