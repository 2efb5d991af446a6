//! How a checkpoint is loaded.
use crate::config::Config;
use crate::error::Result;
use crate::model::{ModelOptions, RawModelOptions};
use crate::native::{guarded, init, text};
use ds41_sys as sys;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::ops::ControlFlow;
use std::ptr;

/// How far a load is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Bytes of the files that have been dealt with; never less than before.
    pub n_done: u64,
    /// Bytes of the files that the load will deal with.
    pub n_total: u64,
    /// A tensor that is being read.
    pub tensor: &'a str,
}

type OnProgress<'a> = Box<dyn FnMut(Progress<'_>) -> ControlFlow<()> + 'a>;

/// How a checkpoint is loaded. All is optional.
///
/// ```no_run
/// use ds41::{LoadOptions, Model};
/// use std::ops::ControlFlow;
///
/// let options = LoadOptions::new().map(true).n_threads(4).progress(|progress| {
///     println!("{} of {} bytes: {}", progress.n_done, progress.n_total, progress.tensor);
///     ControlFlow::Continue(()) // Break cancels
/// });
/// let model = Model::load("DeepSeek-V4.1-Flash", options)?;
/// # Ok::<(), ds41::Error>(())
/// ```
#[derive(Default)]
pub struct LoadOptions<'a> {
    model: ModelOptions,
    config: Option<&'a Config>,
    flags: u32,
    max_seq_len: i64,
    first_layer: i32,
    n_layers: i32,
    n_threads: i32,
    progress: Option<OnProgress<'a>>,
}

impl<'a> LoadOptions<'a> {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Backend, rule and log of the model.
    pub fn model(mut self, options: ModelOptions) -> Self {
        self.model = options;
        self
    }

    /// Instead of the checkpoint's own.
    pub fn config(mut self, config: &'a Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Leave weights that keep their form in the mapping of the file; the rest is copied. The files must not be changed
    /// or truncated until the model and all its children are gone.
    pub fn map(self, on: bool) -> Self {
        self.flag(sys::DS41_LOAD_MAP, on)
    }

    /// FP8 weights become BF16, and are multiplied with the activations as they are.
    pub fn expand_fp8(self, on: bool) -> Self {
        self.flag(sys::DS41_LOAD_EXPAND_FP8, on)
    }

    /// Q2_K weights are multiplied with the bf16 activations.
    pub fn plain_q2_k(self, on: bool) -> Self {
        self.flag(sys::DS41_LOAD_PLAIN_Q2_K, on)
    }

    fn flag(mut self, flag: u32, on: bool) -> Self {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
        self
    }

    /// Instead of the configuration's own; 0: as it says.
    pub fn max_seq_len(mut self, n: i64) -> Self {
        self.max_seq_len = n;
        self
    }

    /// `n` layers from `first` on; n = 0: to the end, less draft layers of which the checkpoint holds nothing.
    pub fn layers(mut self, first: i32, n: i32) -> Self {
        (self.first_layer, self.n_layers) = (first, n);
        self
    }

    /// That read and expand, the caller's included; 0: one per core, at most 8.
    pub fn n_threads(mut self, n: i32) -> Self {
        self.n_threads = n;
        self
    }

    /// Told on this thread how the load goes on; `Break` cancels it, and so does a panic, which goes on when the load
    /// has ended.
    pub fn progress(mut self, progress: impl FnMut(Progress<'_>) -> ControlFlow<()> + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    pub(crate) fn into_raw(self) -> Result<RawLoadOptions<'a>> {
        let mut raw = self.without_progress()?;
        raw.progress = self.progress;
        Ok(raw)
    }

    pub(crate) fn without_progress(&self) -> Result<RawLoadOptions<'a>> {
        let defaults = init(sys::ds41_load_options_init);
        let raw = sys::ds41_load_options {
            struct_size: defaults.struct_size,
            flags: self.flags,
            model: ptr::null(),
            config: ptr::null(),
            max_seq_len: self.max_seq_len,
            first_layer: self.first_layer,
            n_layers: self.n_layers,
            n_threads: self.n_threads,
            reserved: defaults.reserved,
            progress: None,
            progress_user: ptr::null_mut(),
        };
        let config = self.config.map(|config| Box::new(config.to_raw()));
        Ok(RawLoadOptions { raw, config, model: self.model.to_raw()?, progress: None })
    }
}

impl fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, config, flags, max_seq_len, first_layer, n_layers, n_threads, progress } = self;
        f.debug_struct("LoadOptions")
            .field("model", model)
            .field("config", config)
            .field("flags", flags)
            .field("max_seq_len", max_seq_len)
            .field("first_layer", first_layer)
            .field("n_layers", n_layers)
            .field("n_threads", n_threads)
            .field("progress", &progress.is_some())
            .finish()
    }
}

/// Options for a call, with what they point to.
pub(crate) struct RawLoadOptions<'a> {
    raw: sys::ds41_load_options,
    config: Option<Box<sys::ds41_config>>,
    model: RawModelOptions,
    progress: Option<OnProgress<'a>>,
}

impl RawLoadOptions<'_> {
    /// Valid while self stays where it is.
    pub(crate) fn as_raw(&mut self) -> sys::ds41_load_options {
        let mut raw = self.raw;
        raw.model = &self.model.raw;
        raw.config = self.config.as_deref().map_or(ptr::null(), ptr::from_ref);
        if let Some(progress) = &mut self.progress {
            raw.progress = Some(on_progress);
            raw.progress_user = ptr::from_mut(progress).cast();
        }
        raw
    }

    pub(crate) fn into_model(self) -> RawModelOptions {
        self.model
    }
}

unsafe extern "C" fn on_progress(n_done: u64, n_total: u64, tensor: *const c_char, user: *mut c_void) -> i32 {
    guarded(1, || {
        // SAFETY: the pointer was given with this function for the load in progress, on whose thread this runs. The
        // name is valid for the call.
        let (progress, tensor) = unsafe { (&mut *user.cast::<OnProgress<'_>>(), text(tensor)) };
        i32::from(progress(Progress { n_done, n_total, tensor: &tensor }).is_break())
    })
}
