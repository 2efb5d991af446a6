//! What people publish, before it becomes a model.
use crate::config::Config;
use crate::error::Result;
use crate::load::LoadOptions;
use crate::model::Memory;
use crate::native::{c_path, call, create, init, path, static_text, text, Handle};
use crate::tensor::Dtype;
use ds41_sys as sys;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// An open checkpoint: a folder of the release, a safetensors file with its config.json beside it, or a GGUF.
/// Immutable: `Send` and `Sync`.
///
/// [`Model::load`](crate::Model::load) needs no open checkpoint: it takes the same path. The files must not be changed
/// or truncated until it is dropped.
#[derive(Debug)]
pub struct Checkpoint {
    handle: Handle<sys::ds41_checkpoint>,
}

// SAFETY: "Immutable: shared freely between threads."
unsafe impl Send for Checkpoint {}
unsafe impl Sync for Checkpoint {}

/// One tensor of the attention layers in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointTensor<'a> {
    /// From 0 on, draft layers behind the backbone's.
    pub layer: i32,
    /// Its member of [`LayerWeights`](crate::LayerWeights), such as "wq_a".
    pub member: &'static str,
    /// As in the file.
    pub name: Cow<'a, str>,
    /// As the file calls it, such as "F8_E4M3" or "Q8_0".
    pub file_type: &'static str,
    /// Outermost first.
    pub shape: Vec<i64>,
    /// Index among [`Checkpoint::files`].
    pub file: i32,
    /// What it has in a model loaded with the default options.
    pub dtype: Dtype,
    /// In the file, scales included.
    pub n_bytes: u64,
    /// In that model, scales included.
    pub n_model_bytes: u64,
}

impl Checkpoint {
    /// Read the configuration and the headers of the files that hold attention tensors. What is wrong with single
    /// tensors is no failure but one of the [`problems`](Self::problems).
    ///
    /// Errors: `IoError`, `InvalidFile`, `Unsupported` (a GGUF that is big endian, or of another version than 2 and 3),
    /// `OutOfMemory`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        // SAFETY: a place for the handle and a string.
        let handle = create(sys::ds41_checkpoint_destroy, |checkpoint| unsafe {
            sys::ds41_checkpoint_load(checkpoint, path.as_ptr())
        })?;
        Ok(Self { handle })
    }

    /// "safetensors" or "gguf".
    pub fn format(&self) -> &'static str {
        // SAFETY: the handle is alive, here and below; the string is static.
        unsafe { static_text(sys::ds41_checkpoint_get_format(self.handle.as_ptr())) }
    }

    /// The files that were opened: shards of the release without attention tensors are not.
    pub fn files(&self) -> Vec<PathBuf> {
        let n = unsafe { sys::ds41_checkpoint_get_n_files(self.handle.as_ptr()) };
        let file = |index| unsafe { path(sys::ds41_checkpoint_get_file(self.handle.as_ptr(), index)) };
        (0..n).filter_map(file).collect()
    }

    /// The configuration that the checkpoint comes with.
    ///
    /// Errors: `IoError` (a safetensors file without a config.json beside it), `InvalidFile`, `InvalidConfig`,
    /// `Unsupported` (another quantisation than fp8 in blocks of 32 x 32).
    pub fn config(&self) -> Result<Config> {
        let mut config = init(sys::ds41_config_init);
        // SAFETY: a struct that was initialised.
        call(|| unsafe { sys::ds41_checkpoint_get_config(self.handle.as_ptr(), &mut config) })?;
        Ok(Config::from_raw(&config))
    }

    /// Tensors that are right, scales counted with their weights; 0 where there is no valid configuration.
    pub fn n_tensors(&self) -> i64 {
        unsafe { sys::ds41_checkpoint_get_n_tensors(self.handle.as_ptr()) }
    }

    /// Describe a tensor; they are in order of layers, and within one in that of [`LayerWeights`](crate::LayerWeights).
    ///
    /// Errors: `InvalidArgument` (the index).
    pub fn tensor(&self, index: i64) -> Result<CheckpointTensor<'_>> {
        let mut tensor = init(sys::ds41_checkpoint_tensor_init);
        // SAFETY: a struct that was initialised.
        call(|| unsafe { sys::ds41_checkpoint_get_tensor(self.handle.as_ptr(), index, &mut tensor) })?;
        let sys::ds41_checkpoint_tensor {
            struct_size: _,
            layer,
            member,
            name,
            r#type: file_type,
            shape,
            n_dims,
            file,
            dtype,
            reserved: _,
            n_bytes,
            n_model_bytes,
        } = tensor;
        let n_dims = usize::try_from(n_dims).unwrap_or(0).min(shape.len());
        Ok(CheckpointTensor {
            layer,
            // SAFETY: static strings, and one that is lent until destroy, which the borrow of self excludes.
            member: unsafe { static_text(member) },
            name: unsafe { text(name) },
            file_type: unsafe { static_text(file_type) },
            shape: shape[..n_dims].to_vec(),
            file,
            dtype: Dtype::from_raw(dtype),
            n_bytes,
            n_model_bytes,
        })
    }

    /// All tensors, as [`tensor`](Self::tensor) describes them.
    pub fn tensors(&self) -> impl Iterator<Item = CheckpointTensor<'_>> {
        (0..self.n_tensors()).filter_map(|index| self.tensor(index).ok())
    }

    /// What keeps all layers from being loaded: sentences, with what was expected.
    pub fn problems(&self) -> Vec<String> {
        let n = unsafe { sys::ds41_checkpoint_get_n_problems(self.handle.as_ptr()) };
        // SAFETY: lent until destroy, and copied here.
        let problem = |index| unsafe { text(sys::ds41_checkpoint_get_problem(self.handle.as_ptr(), index)) };
        (0..n).map(|index| problem(index).into_owned()).collect()
    }

    /// What a model loaded with these options, its sequences and a context will take; nothing is read. `weights` counts
    /// what is copied. See [`Model::estimate_memory`](crate::Model::estimate_memory).
    pub fn estimate_memory(
        &self,
        options: &LoadOptions<'_>,
        n_seqs: i64,
        n_positions: i64,
        n_tokens: i64,
    ) -> Result<Memory> {
        let mut options = options.without_progress()?;
        let raw = options.as_raw();
        let handle = self.handle.as_ptr();
        Memory::filled(|memory| {
            // SAFETY: structs that were initialised; what they point to is there for the call.
            unsafe { sys::ds41_checkpoint_estimate_memory(handle, &raw, n_seqs, n_positions, n_tokens, memory) }
        })
    }
}
