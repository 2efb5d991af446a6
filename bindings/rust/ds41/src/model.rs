//! Models, and what is said when one is made.
use crate::config::Config;
use crate::error::Result;
use crate::load::LoadOptions;
use crate::log::{on_log, Log, LogLevel};
use crate::native::{c_path, c_string, call, create, init, static_text, Handle};
use crate::weights::LayerWeights;
use ds41_sys as sys;
use std::ffi::CString;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// Rule for equal scores at the cut of a selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TopkRule {
    /// Higher score first, then lower index.
    #[default]
    Stable,
    /// The set that torch.topk returns on a CPU: for parity checks against outputs of the original. Chunks reproduce a
    /// whole prefill only with [`ContextOptions::topk_end_pos`](crate::ContextOptions::topk_end_pos).
    TorchCpu,
}

/// How a model is made. All is optional.
///
/// ```
/// let options = ds41::ModelOptions::new().backend("reference").log(|level, message| eprintln!("{level:?}: {message}"));
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    topk_rule: TopkRule,
    backend: Option<String>,
    log: Option<Arc<Log>>,
}

impl ModelOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Name of a backend ([`backends`](crate::backends)), or "auto", the default: the best that runs here.
    pub fn backend(mut self, name: impl Into<String>) -> Self {
        self.backend = Some(name.into());
        self
    }

    /// How equal scores are ranked.
    pub fn topk_rule(mut self, rule: TopkRule) -> Self {
        self.topk_rule = rule;
        self
    }

    /// Receives what the model has to say: the backend that was chosen, problems of a checkpoint, values that were
    /// rounded. Called on the thread of the call that caused the message, perhaps on several at once, and kept until the
    /// model and all its children are gone.
    ///
    /// It must not use this library, which panics there; what is dropped there is leaked. When it panics, the panic
    /// goes on when the call in progress has ended.
    pub fn log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Some(Arc::new(Log(Box::new(log))));
        self
    }

    pub(crate) fn to_raw(&self) -> Result<RawModelOptions> {
        let backend = self.backend.as_deref().map(|name| c_string("backend", name)).transpose()?;
        let defaults = init(sys::ds41_model_options_init);
        let raw = sys::ds41_model_options {
            struct_size: defaults.struct_size,
            topk_rule: match self.topk_rule {
                TopkRule::Stable => sys::DS41_TOPK_STABLE.0,
                TopkRule::TorchCpu => sys::DS41_TOPK_TORCH_CPU.0,
            },
            backend: backend.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            log: self.log.as_ref().map(|_| on_log as _),
            log_user: self.log.as_ref().map_or(ptr::null_mut(), |log| Arc::as_ptr(log).cast_mut().cast()),
        };
        Ok(RawModelOptions { raw, _backend: backend, log: self.log.clone() })
    }
}

/// Options for a call, with what they point to.
pub(crate) struct RawModelOptions {
    pub(crate) raw: sys::ds41_model_options,
    _backend: Option<CString>,
    log: Option<Arc<Log>>,
}

/// A model while its layers are set: see [`Model`].
#[derive(Debug)]
pub struct ModelBuilder<'w> {
    inner: Inner<'w>,
}

impl<'w> ModelBuilder<'w> {
    /// A model without weights.
    ///
    /// Errors: `InvalidConfig`, `NoBackend` (the sentence lists the names that there are), `Unsupported` (the rule
    /// cannot be reproduced by this build).
    pub fn new(config: &Config, options: &ModelOptions) -> Result<Self> {
        let (config, options) = (config.to_raw(), options.to_raw()?);
        // SAFETY: two structs that were initialised; what the options point to is there until `Inner` is gone.
        let handle =
            create(sys::ds41_model_destroy, |model| unsafe { sys::ds41_model_create(model, &config, &options.raw) })?;
        Ok(Self { inner: Inner::new(handle, options) })
    }

    /// Copy the weights of one layer. Setting a layer again replaces its weights.
    ///
    /// Errors: `InvalidLayer`, `InvalidArgument` (a tensor is absent, or present without use; a scale byte is 255; a
    /// sink is NaN), `InvalidDtype`, `InvalidShape`, `OutOfMemory`.
    pub fn set_layer(&mut self, layer: i32, weights: &LayerWeights<'_>) -> Result<()> {
        self.set(layer, weights.to_raw(sys::DS41_OWNERSHIP_COPY)?)
    }

    /// Use the weights of one layer where they are, but for norms and sinks, which are small and copied. They must be
    /// aligned to their elements, and outlive the model, its contexts and sequences:
    ///
    /// ```compile_fail,E0597
    /// use ds41::{Bf16, Config, LayerWeights, ModelBuilder, ModelOptions, Tensor};
    /// let mut builder = ModelBuilder::new(&Config::flash(), &ModelOptions::new()).unwrap();
    /// {
    ///     let wkv = vec![Bf16::ZERO; 512 * 5120];
    ///     let weights = LayerWeights { wkv: Some(Tensor::new(&wkv, &[512, 5120]).unwrap()), ..Default::default() };
    ///     builder.set_layer_borrowed(0, &weights).unwrap();
    /// }
    /// let model = builder.build();
    /// ```
    ///
    /// Errors: as [`set_layer`](Self::set_layer), and `InvalidArgument` for misaligned data.
    pub fn set_layer_borrowed(&mut self, layer: i32, weights: &LayerWeights<'w>) -> Result<()> {
        self.set(layer, weights.to_raw(sys::DS41_OWNERSHIP_BORROW)?)
    }

    fn set(&mut self, layer: i32, weights: sys::ds41_layer_weights) -> Result<()> {
        // SAFETY: nobody else has the model yet. The tensors are there for the call, borrowed ones for 'w.
        call(|| unsafe { sys::ds41_model_set_layer(self.inner.as_ptr(), layer, &weights) })
    }

    /// The model, which does not change any more.
    pub fn build(self) -> Model<'w> {
        Model { inner: Arc::new(self.inner) }
    }
}

/// Configuration, backend and the weights of some or all layers. Immutable, `Send` and `Sync`.
///
/// A clone is another reference to the same model. Contexts, sequences and buffers keep one too, so that all may be
/// dropped in any order. `'w` is the lifetime of borrowed weights ([`ModelBuilder::set_layer_borrowed`]), `'static`
/// where there are none:
///
/// ```compile_fail,E0505
/// # fn weights<'a>(_: &'a [ds41::Bf16]) -> ds41::LayerWeights<'a> { unimplemented!() }
/// # let config = ds41::Config::flash();
/// use ds41::{Bf16, ModelBuilder, ModelOptions, Sequence};
/// let memory = vec![Bf16::ZERO; 1 << 20];
/// let mut builder = ModelBuilder::new(&config, &ModelOptions::new()).unwrap();
/// builder.set_layer_borrowed(0, &weights(&memory)).unwrap();
/// let sequence = Sequence::new(&builder.build()).unwrap();
/// drop(memory); // the sequence still keeps the model, which uses it
/// drop(sequence);
/// ```
///
/// The end of a model counts as a use, too:
///
/// ```compile_fail,E0597
/// # fn weights<'a>(_: &'a [ds41::Bf16]) -> ds41::LayerWeights<'a> { unimplemented!() }
/// # let config = ds41::Config::flash();
/// # use ds41::{Bf16, ModelBuilder, ModelOptions};
/// let model;
/// let memory = vec![Bf16::ZERO; 1 << 20]; // dropped before the model, which was declared first
/// let mut builder = ModelBuilder::new(&config, &ModelOptions::new()).unwrap();
/// builder.set_layer_borrowed(0, &weights(&memory)).unwrap();
/// model = builder.build();
/// ```
#[derive(Clone, Debug)]
pub struct Model<'w> {
    pub(crate) inner: Arc<Inner<'w>>,
}

impl Model<'static> {
    /// Make a model with the weights of a checkpoint: a folder of the release, a safetensors file with its config.json
    /// beside it, or a GGUF.
    ///
    /// Errors: `MissingTensor`, `InvalidDtype`, `InvalidShape`, `InvalidFile` (tensors of the chosen layers; the
    /// sentence names the first dozen), `InvalidLayer` (the range), `InvalidArgument`, `Cancelled`, and those of
    /// [`Checkpoint::load`](crate::Checkpoint::load), [`Checkpoint::config`](crate::Checkpoint::config) and
    /// [`ModelBuilder::new`].
    pub fn load(path: impl AsRef<Path>, options: LoadOptions<'_>) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        let mut options = options.into_raw()?;
        let raw = options.as_raw();
        // SAFETY: a struct that was initialised; what it points to is there for the call, the log until `Inner` is gone.
        let handle =
            create(sys::ds41_model_destroy, |model| unsafe { sys::ds41_model_load(model, path.as_ptr(), &raw) })?;
        Ok(Self { inner: Arc::new(Inner::new(handle, options.into_model())) })
    }
}

impl Model<'_> {
    /// Name of the backend that the model runs on, such as "cpu".
    pub fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    /// A copy of its configuration.
    pub fn config(&self) -> Result<Config> {
        let mut config = init(sys::ds41_config_init);
        // SAFETY: a struct that was initialised.
        call(|| unsafe { sys::ds41_model_get_config(self.inner.as_ptr(), &mut config) })?;
        Ok(Config::from_raw(&config))
    }

    /// What `n_seqs` sequences of `n_positions` tokens and a context with default options for steps of up to `n_tokens`
    /// tokens will take.
    pub fn estimate_memory(&self, n_seqs: i64, n_positions: i64, n_tokens: i64) -> Result<Memory> {
        Memory::filled(|memory| {
            // SAFETY: a struct that was initialised.
            unsafe { sys::ds41_model_estimate_memory(self.inner.as_ptr(), n_seqs, n_positions, n_tokens, memory) }
        })
    }
}

/// What a deployment will take, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// Held by the model; borrowed and mapped memory is not counted.
    pub weights: u64,
    /// Window rows of all sequences.
    pub window: u64,
    /// Compressed rows of all sequences.
    pub compressed: u64,
    /// Index keys of all sequences.
    pub index_keys: u64,
    /// Incomplete groups of all sequences.
    pub group_state: u64,
    /// One context.
    pub workspace: u64,
}

impl Memory {
    pub(crate) fn filled(function: impl FnOnce(&mut sys::ds41_memory) -> sys::ds41_status) -> Result<Self> {
        let mut memory = init(sys::ds41_memory_init);
        call(|| function(&mut memory))?;
        let sys::ds41_memory {
            struct_size: _,
            reserved: _,
            weights,
            window,
            compressed,
            index_keys,
            group_state,
            workspace,
        } = memory;
        Ok(Self { weights, window, compressed, index_keys, group_state, workspace })
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        let Self { weights, window, compressed, index_keys, group_state, workspace } = self;
        [weights, window, compressed, index_keys, group_state, workspace].into_iter().sum()
    }
}

/// The model's handle and what it borrows. Every child keeps one, behind its own handle.
#[derive(Debug)]
pub(crate) struct Inner<'w> {
    handle: Handle<sys::ds41_model>,
    log: Option<Arc<Log>>,
    host: bool,
    weights: PhantomData<&'w [u8]>,
}

// SAFETY: "A model is shared freely once its layers are set", and while they are it is owned by the builder.
unsafe impl Send for Inner<'_> {}
unsafe impl Sync for Inner<'_> {}

impl Inner<'_> {
    fn new(handle: Handle<sys::ds41_model>, options: RawModelOptions) -> Self {
        let mut inner = Self { handle, log: options.log, host: false, weights: PhantomData };
        inner.host = matches!(inner.backend(), "cpu" | "reference");
        inner
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ds41_model {
        self.handle.as_ptr()
    }

    fn backend(&self) -> &'static str {
        // SAFETY: the handle is alive; the string is static.
        unsafe { static_text(sys::ds41_model_get_backend(self.as_ptr())) }
    }

    /// What children keep that may outlive this.
    pub(crate) fn log(&self) -> Option<Arc<Log>> {
        self.log.clone()
    }

    /// Whether the backend computes in host memory and has finished when a call returns. What is not known to do so is
    /// given buffers only, and waited for.
    pub(crate) fn is_host(&self) -> bool {
        self.host
    }
}

impl Drop for Inner<'_> {
    /// Makes the borrow checker count the model's end as a use of the borrowed weights.
    fn drop(&mut self) {}
}
