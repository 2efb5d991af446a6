//! quickstart: load attention layers from a safetensors file, run a prompt of 12 tokens, then decode 4 more.
//!
//! A layer's output is the next layer's input here, and the last layer's is the next token, to keep this short: a real
//! model has the norms, the residual and the MoE in between. Usage: quickstart [FILE.safetensors]
use ds41::{
    Bf16, Buffer, Config, Context, ContextOptions, Dtype, File, LayerWeights, ModelBuilder, ModelOptions, Result,
    Sequence, Span,
};
use std::mem::size_of;
use std::process::ExitCode;

const N_PROMPT: usize = 12;
const N_DECODE: usize = 4;

fn run(path: &str) -> Result<()> {
    let file = File::load(path)?;
    let config = Config::from_json(&file.metadata("config").unwrap_or_default())?;
    let n_layers = config.compress_ratios.len() as i32;
    let mut builder = ModelBuilder::new(&config, &ModelOptions::new())?;
    for layer in 0..n_layers {
        builder.set_layer(layer, &LayerWeights::from_file(&file, layer)?)?; // copies
    }
    let model = builder.build();
    let mut context = Context::new(&model, ContextOptions::new())?;
    let mut sequence = Sequence::new(&model)?;
    println!("{n_layers} layers, backend {}", model.backend());

    let dim = config.dim as usize;
    let mut buffer = Buffer::new(&model, (N_PROMPT * dim * size_of::<Bf16>()) as u64)?;
    let value = |i: usize| Bf16::from_bits(((i & 1) << 15 | (0x3e00 + i * 37 % 256)) as u16);
    let mut rows: Vec<Bf16> = (0..N_PROMPT * dim).map(value).collect();
    let (mut pos, mut n) = (0, N_PROMPT);
    while pos < N_PROMPT + N_DECODE {
        buffer.upload(0, &rows)?;
        let mut x = buffer.tensor_mut(0, Dtype::Bf16, &[n as i64, dim as i64])?; // a layer may work in place
        if pos == 0 {
            for layer in 0..n_layers {
                context.prefill_in_place(layer, &mut sequence, &mut x, 0)?;
            }
        } else {
            // The host's part once per step, for one or many sequences.
            let mut step = context.decode_prep([Span::new(&mut sequence, pos as i64, 1)])?;
            for layer in 0..n_layers {
                step.body_in_place(layer, &mut x)?;
            }
        }
        context.synchronize()?;
        rows.truncate(dim);
        buffer.download(((n - 1) * dim * size_of::<Bf16>()) as u64, &mut rows)?; // the next token
        let bytes = sequence.n_bytes();
        print!("{n:2} tokens from position {pos:2}: cache of {bytes} bytes, last row");
        rows.iter().take(4).for_each(|value| print!(" {value}"));
        println!(" ...");
        (pos, n) = (pos + n, 1);
    }
    Ok(())
}

fn main() -> ExitCode {
    let path = std::env::args().nth(1).unwrap_or("tests/fixtures/a_golden_stable.safetensors".into());
    match run(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart failed: {error}");
            ExitCode::FAILURE
        }
    }
}
