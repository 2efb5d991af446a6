//! Golden cases, and how they are run through this crate.
#![allow(dead_code)] // no test uses all of it

mod checkpoint;
pub use checkpoint::*;

use ds41::*;
use std::path::PathBuf;

pub struct Step {
    pub start_pos: i64,
    pub n_tokens: i64,
}

/// The files of a case, all parts.
pub struct Case {
    pub paths: Vec<PathBuf>,
    files: Vec<File>,
    pub config: Config,
    pub steps: Vec<Step>,
}

impl Case {
    pub fn load(name: &str) -> Self {
        let one = fixture(&format!("{name}.safetensors"));
        let part = |k: usize, n: usize| fixture(&format!("{name}.{k}of{n}.safetensors"));
        let paths = match (2..9).find(|n| part(1, *n).exists()) {
            _ if one.exists() => vec![one],
            Some(n) => (1..=n).map(|k| part(k, n)).collect(),
            None => panic!("there is no case {name}"),
        };
        let files: Vec<_> = paths.iter().map(|path| File::load(path).unwrap()).collect();
        let config = Config::from_json(&files[0].metadata("config").unwrap()).unwrap();
        // A list of objects with two numbers each, in this order.
        let text = files[0].metadata("steps").unwrap().into_owned();
        assert!(text.starts_with("[{\"start_pos\": 0, \"tokens\": "), "{text}");
        let numbers: Vec<i64> = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let steps = numbers.chunks(2).map(|pair| Step { start_pos: pair[0], n_tokens: pair[1] }).collect();
        Self { paths, files, config, steps }
    }

    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.files.iter().find_map(|file| file.tensor(name).ok())
    }

    pub fn input(&self, step: usize, layer: i32) -> Vec<Bf16> {
        self.tensor(&format!("step{step}.layer{layer}.x")).unwrap().to_vec().unwrap()
    }

    /// Those with weights.
    pub fn layers(&self) -> Vec<i32> {
        let has_weights = |layer: &i32| self.tensor(&format!("layers.{layer}.attn.wq_a.weight")).is_some();
        (0..self.config.compress_ratios.len() as i32).filter(has_weights).collect()
    }

    /// Of all parts: a layer's tensors may be in several.
    pub fn weights(&self, layer: i32, plain_activations: bool) -> LayerWeights<'_> {
        let mut weights = LayerWeights::default();
        for file in &self.files {
            let mut part = LayerWeights::from_file(file, layer).unwrap();
            for (member, found) in members(&mut weights).into_iter().zip(members(&mut part)) {
                *member = member.or(*found);
            }
        }
        for tensor in members(&mut weights).into_iter().flatten() {
            if tensor.dtype() == Dtype::U8 {
                *tensor = tensor.into_q2_k().unwrap();
            }
            if plain_activations && matches!(tensor.dtype(), Dtype::Fp8E4m3 | Dtype::Q2_K) {
                *tensor = tensor.plain_activations();
            }
        }
        weights
    }

    pub fn model_with(&self, plain_activations: bool, options: &ModelOptions) -> Model<'static> {
        let mut builder = ModelBuilder::new(&self.config, options).unwrap();
        for layer in self.layers() {
            builder.set_layer(layer, &self.weights(layer, plain_activations)).unwrap();
        }
        builder.build()
    }

    pub fn model(&self) -> Model<'static> {
        self.model_with(false, &ModelOptions::new())
    }

    /// Outputs of all steps and layers, each layer on the input that the case has for it.
    pub fn run(&self, model: &Model<'_>, chunk: Option<i64>) -> Vec<Output> {
        let mut context = Context::new(model, ContextOptions::new()).unwrap();
        self.run_on(model, &mut context, chunk)
    }

    pub fn run_on(&self, model: &Model<'_>, context: &mut Context<'_>, chunk: Option<i64>) -> Vec<Output> {
        let dim = self.config.dim as usize;
        let mut sequence = Sequence::new(model).unwrap();
        let mut outputs = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            if step.start_pos == 0 {
                sequence.reset().unwrap();
            }
            let inputs: Vec<_> = self.layers().iter().map(|layer| self.input(index, *layer)).collect();
            let mut results: Vec<_> = inputs.iter().map(|input| vec![Bf16::NAN; input.len()]).collect();
            let n_chunk = chunk.unwrap_or(step.n_tokens);
            let mut done = 0;
            while done < step.n_tokens {
                let n = n_chunk.min(step.n_tokens - done);
                let rows = done as usize * dim..(done + n) as usize * dim;
                let (shape, start_pos) = ([n, dim as i64], step.start_pos + done);
                if step.start_pos > 0 {
                    let spans = [Span::new(&mut sequence, start_pos, n as i32)];
                    let mut decode = context.decode_prep(spans).unwrap();
                    for (i, layer) in self.layers().into_iter().enumerate() {
                        let x = Tensor::new(&inputs[i][rows.clone()], &shape).unwrap();
                        let mut out = TensorMut::new(&mut results[i][rows.clone()], &shape).unwrap();
                        decode.body(layer, &x, &mut out).unwrap();
                    }
                } else {
                    for (i, layer) in self.layers().into_iter().enumerate() {
                        let x = Tensor::new(&inputs[i][rows.clone()], &shape).unwrap();
                        let mut out = TensorMut::new(&mut results[i][rows.clone()], &shape).unwrap();
                        context.prefill(layer, &mut sequence, &x, start_pos, &mut out).unwrap();
                    }
                }
                done += n;
            }
            for (layer, values) in self.layers().into_iter().zip(results) {
                outputs.push(Output { step: index, layer, values });
            }
        }
        outputs
    }
}

pub struct Output {
    pub step: usize,
    pub layer: i32,
    pub values: Vec<Bf16>,
}

pub fn bits(outputs: &[Output]) -> Vec<u16> {
    outputs.iter().flat_map(|output| output.values.iter().map(|value| value.to_bits())).collect()
}

/// Each member of the struct.
pub fn members<'s, 'a>(weights: &'s mut LayerWeights<'a>) -> [&'s mut Option<Tensor<'a>>; 15] {
    let LayerWeights {
        wq_a,
        q_norm,
        wq_b,
        wkv,
        kv_norm,
        attn_sink,
        wo_a,
        wo_b,
        compressor_wkv,
        compressor_wgate,
        compressor_norm,
        indexer_wk,
        indexer_k_norm,
        indexer_wq_b,
        indexer_weights_proj,
    } = weights;
    [
        wq_a,
        q_norm,
        wq_b,
        wkv,
        kv_norm,
        attn_sink,
        wo_a,
        wo_b,
        compressor_wkv,
        compressor_wgate,
        compressor_norm,
        indexer_wk,
        indexer_k_norm,
        indexer_wq_b,
        indexer_weights_proj,
    ]
}

/// Compile a C program against the same library.
pub fn compile_c(source: &std::path::Path, program: &std::path::Path) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = std::process::Command::new(&compiler);
    command.arg("-std=c99").arg(source).arg("-o").arg(program);
    if let Some(include) = option_env!("DS41_INCLUDE") {
        command.arg(format!("-I{include}"));
    }
    if let Some(lib_dir) = option_env!("DS41_LIB_DIR_FOUND") {
        command.arg(format!("-L{lib_dir}")).arg(format!("-Wl,-rpath,{lib_dir}"));
    }
    let output = command.arg("-lds41").output();
    let output = output.unwrap_or_else(|error| panic!("the C compiler {compiler} cannot be run: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
