//! DeepSeek-V4.1's attention layers: safe bindings to libds41.
//!
//! A [`Model`] has a configuration and the weights of layers, from a checkpoint ([`Model::load`]) or set one by one
//! ([`ModelBuilder`]). A [`Context`] runs them over the tokens of [`Sequence`]s: [`Context::prefill`] for prompts,
//! [`Context::decode_prep`] for the next tokens of one or many sequences. On a GPU a step's layers may be captured into
//! a [`Graph`] and launched as one ([`DecodeStep::capture`]).
//!
//! ```
//! use ds41::{Bf16, Context, ContextOptions, LoadOptions, Model, Sequence, Span, TensorMut};
//! # mod support { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/checkpoint.rs")); }
//! # fn main() -> ds41::Result<()> {
//! # let folder = support::checkpoint("a_golden_stable");
//! # let checkpoint = folder.path();
//! let model = Model::load(checkpoint, LoadOptions::new())?;
//! let mut context = Context::new(&model, ContextOptions::new())?;
//! let mut sequence = Sequence::new(&model)?;
//! let (dim, n_layers) = (model.config()?.dim as usize, model.config()?.n_layers);
//! let mut rows = vec![Bf16::from_f32(0.5); 12 * dim]; // a prompt of 12 tokens, then one more
//! for layer in 0..n_layers {
//!     context.prefill_in_place(layer, &mut sequence, &mut TensorMut::new(&mut rows, &[12, dim as i64])?, 0)?;
//! }
//! let mut step = context.decode_prep([Span::new(&mut sequence, 12, 1)])?;
//! for layer in 0..n_layers {
//!     step.body_in_place(layer, &mut TensorMut::new(&mut rows[11 * dim..], &[1, dim as i64])?)?;
//! }
//! # assert!(rows.iter().all(|value| value.to_f32().is_finite()));
//! # assert_eq!(sequence.position(0)?, 13);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! Every call that can fail returns an [`Error`]: a variant for each [`Status`], with one sentence that tells which
//! argument was wrong, what came and what is accepted. Unless a comment says otherwise a failed call has changed nothing.
//!
//! # Lifetimes
//!
//! Contexts, sequences, buffers and graphs keep their model alive, and may be dropped before or after it. Only memory
//! is borrowed: tensors by the calls they are given to, weights by the model and its children if they are not copied.
//! What outlives what is for the compiler to check: nothing can be used after its end, or end twice.
//!
//! ```compile_fail,E0382
//! # fn model() -> ds41::Model<'static> { unimplemented!() }
//! let model = model();
//! drop(model);
//! model.backend();
//! ```
//!
//! ```compile_fail,E0382
//! # fn sequence() -> ds41::Sequence<'static> { unimplemented!() }
//! let sequence = sequence();
//! drop(sequence);
//! drop(sequence);
//! ```
//!
//! # Threads
//!
//! | type | `Send` | `Sync` | |
//! |---|---|---|---|
//! | [`Model`], [`Checkpoint`], [`File`], [`Config`] | yes | yes | immutable |
//! | [`Context`], [`Sequence`], [`Buffer`] | yes | no | one thread at a time; what changes them takes `&mut` |
//! | [`Graph`] | yes | no | launched on the thread that has its context |
//! | [`Tensor`], [`TensorMut`] | yes | yes | as `&[T]` and `&mut [T]` |
//!
//! # Callbacks
//!
//! Closures for the log, the progress of a load, taps and a parallel-for may panic: the panic travels around the C
//! library and goes on when its call has ended.
//!
//! # Numbers
//!
//! Layers, counts and positions have the integer types of the C API; each is checked by the library.
#![warn(missing_debug_implementations, missing_docs, rust_2018_idioms)]

mod bf16;
mod buffer;
mod checkpoint;
mod config;
mod context;
mod error;
mod file;
mod graph;
mod load;
mod log;
mod model;
mod native;
mod parallel;
mod sequence;
mod tap;
mod tensor;
mod weights;

pub use bf16::Bf16;
pub use buffer::Buffer;
pub use checkpoint::{Checkpoint, CheckpointTensor};
pub use config::{Config, LayerRole};
pub use context::{Context, ContextOptions, DecodeStep, Span};
pub use error::{Error, Result, Status};
pub use file::File;
pub use graph::{Capture, Graph};
pub use load::{LoadOptions, Progress};
pub use log::LogLevel;
pub use model::{Memory, Model, ModelBuilder, ModelOptions, TopkRule};
pub use parallel::Tasks;
pub use sequence::Sequence;
pub use tap::Tap;
pub use tensor::{Dtype, Element, Tensor, TensorMut};
pub use weights::LayerWeights;

use ds41_sys as sys;

/// Version of the library that is running, "major.minor.patch".
pub fn version() -> &'static str {
    // SAFETY: a static string.
    unsafe { native::static_text(sys::ds41_version()) }
}

/// Names of the backends of this build, best first, whether or not they can run here.
pub fn backends() -> Vec<&'static str> {
    // SAFETY: static strings, and NULL past the end.
    let name = |index| unsafe { sys::ds41_backend_get_name(index) };
    (0..).map(name).take_while(|name| !name.is_null()).map(|name| unsafe { native::static_text(name) }).collect()
}
