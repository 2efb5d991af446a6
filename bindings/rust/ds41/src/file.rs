//! Safetensors files.
use crate::error::Result;
use crate::native::{c_path, c_string, call, create, optional_text, text, Handle};
use crate::tensor::{Place, Tensor};
use ds41_sys as sys;
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::path::Path;

/// A safetensors file, mapped into memory. Immutable: `Send` and `Sync`.
///
/// The file must not be truncated while it is mapped: the system ends a process that reads what is gone. When somebody
/// changes it, numbers change; no reference to the mapping is handed out, which that would make undefined.
///
/// Its tensors do not outlive it:
///
/// ```compile_fail,E0505
/// let file = ds41::File::load("model.safetensors").unwrap();
/// let tensor = file.tensor("layers.0.attn.wq_a.weight").unwrap();
/// drop(file);
/// println!("{tensor:?}");
/// ```
#[derive(Debug)]
pub struct File {
    handle: Handle<sys::ds41_file>,
}

// SAFETY: "Immutable: shared freely between threads."
unsafe impl Send for File {}
unsafe impl Sync for File {}

impl File {
    /// Map a file and check its header; no tensor data is read.
    ///
    /// Errors: `IoError`, `InvalidFile`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = c_path(path.as_ref())?;
        // SAFETY: a place for the handle and a string.
        let handle = create(sys::ds41_file_destroy, |file| unsafe { sys::ds41_file_load(file, path.as_ptr()) })?;
        Ok(Self { handle })
    }

    /// How many there are.
    pub fn n_tensors(&self) -> i64 {
        // SAFETY: the handle is alive, here and below.
        unsafe { sys::ds41_file_get_n_tensors(self.handle.as_ptr()) }
    }

    /// In ascending order of bytes.
    pub fn tensor_names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        (0..self.n_tensors()).map(|index| {
            // SAFETY: lent until destroy, which the borrow of self excludes.
            unsafe { text(sys::ds41_file_get_tensor_name(self.handle.as_ptr(), index)) }
        })
    }

    /// View one tensor; an FP8 one carries its scales. `data` may lie at any byte: copied weights may, borrowed ones
    /// must not. Q2_K blocks come as U8: [`Tensor::into_q2_k`].
    ///
    /// Errors: `MissingTensor`, `InvalidDtype` (one that there is no [`Dtype`](crate::Dtype) for), `InvalidShape`.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let name = c_string("name", name)?;
        let mut raw = MaybeUninit::zeroed();
        call(|| unsafe { sys::ds41_file_get_tensor(self.handle.as_ptr(), name.as_ptr(), raw.as_mut_ptr()) })?;
        // SAFETY: filled completely, and valid until destroy, which the borrow of self excludes.
        Ok(unsafe { Tensor::from_raw(raw.assume_init(), Place::Mapped) })
    }

    /// Value of a key of the metadata.
    pub fn metadata(&self, key: &str) -> Option<Cow<'_, str>> {
        let key = c_string("key", key).ok()?;
        // SAFETY: lent until destroy, which the borrow of self excludes.
        unsafe { optional_text(sys::ds41_file_get_metadata(self.handle.as_ptr(), key.as_ptr())) }
    }
}
