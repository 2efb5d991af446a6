//! Memory on the model's device.
use crate::error::{Error, Result, Status};
use crate::model::{Inner, Model};
use crate::native::{call, create, init_tensor, Handle};
use crate::tensor::{n_bytes, Dtype, Element, Place, Tensor, TensorMut};
use ds41_sys as sys;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::size_of_val;
use std::sync::Arc;

/// Memory on the model's device, for inputs and outputs. `Send`, but not `Sync`.
///
/// On the backends that compute in host memory slices do as well.
///
/// ```
/// # use ds41::*;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/a_golden_stable.safetensors");
/// # let config = Config::from_json(&File::load(path)?.metadata("config").unwrap())?;
/// # let model = ModelBuilder::new(&config, &ModelOptions::new())?.build();
/// let mut buffer = Buffer::new(&model, 64)?;
/// buffer.upload(0, &[1.0f32, 2.0, 3.0])?;
/// let mut back = [0.0f32; 2];
/// buffer.download(4, &mut back)?;
/// assert_eq!(back, [2.0, 3.0]);
/// # Ok::<(), Error>(())
/// ```
///
/// Views keep it borrowed:
///
/// ```compile_fail,E0505
/// # fn buffer() -> ds41::Buffer<'static> { unimplemented!() }
/// let buffer = buffer();
/// let x = buffer.tensor(0, ds41::Dtype::Bf16, &[2, 4]).unwrap();
/// drop(buffer);
/// println!("{x:?}");
/// ```
#[derive(Debug)]
pub struct Buffer<'w> {
    handle: Handle<sys::ds41_buffer>,
    _model: Arc<Inner<'w>>,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: "Any other object is used by one thread at a time", whichever.
unsafe impl Send for Buffer<'_> {}

impl<'w> Buffer<'w> {
    /// Allocate `n_bytes`, 1 or more. The contents are arbitrary.
    ///
    /// Errors: `InvalidArgument`, `OutOfMemory`.
    pub fn new(model: &Model<'w>, n_bytes: u64) -> Result<Self> {
        // SAFETY: a place for the handle, and a model that is alive.
        let handle = create(sys::ds41_buffer_destroy, |buffer| unsafe {
            sys::ds41_buffer_create(buffer, model.inner.as_ptr(), n_bytes)
        })?;
        Ok(Self { handle, _model: model.inner.clone(), not_sync: PhantomData })
    }

    /// Its size.
    pub fn n_bytes(&self) -> u64 {
        // SAFETY: the handle is alive, here and below.
        unsafe { sys::ds41_buffer_get_bytes(self.handle.as_ptr()) }
    }

    /// Copy elements to `offset`, in bytes. Errors: `InvalidArgument` (out of range).
    pub fn upload<T: Element>(&mut self, offset: u64, source: &[T]) -> Result<()> {
        let (data, n_bytes) = (source.as_ptr().cast(), size_of_val(source) as u64);
        call(|| unsafe { sys::ds41_buffer_upload(self.handle.as_ptr(), offset, data, n_bytes) })
    }

    /// Copy elements from `offset`, in bytes. Errors: `InvalidArgument` (out of range).
    pub fn download<T: Element>(&self, offset: u64, target: &mut [T]) -> Result<()> {
        let (data, n_bytes) = (target.as_mut_ptr().cast(), size_of_val(target) as u64);
        call(|| unsafe { sys::ds41_buffer_download(self.handle.as_ptr(), offset, data, n_bytes) })
    }

    /// View a part from `offset` on, in bytes, as an input. Errors: `InvalidShape` (out of range), `InvalidDtype`.
    pub fn tensor(&self, offset: u64, dtype: Dtype, shape: &[i64]) -> Result<Tensor<'_>> {
        // SAFETY: inside the buffer, which the borrow of self keeps.
        Ok(unsafe { Tensor::from_raw(self.view(offset, dtype, shape)?, Place::Buffer) })
    }

    /// View a part from `offset` on, in bytes, as an output. Errors: as [`tensor`](Self::tensor).
    pub fn tensor_mut(&mut self, offset: u64, dtype: Dtype, shape: &[i64]) -> Result<TensorMut<'_>> {
        // SAFETY: inside the buffer, which the borrow of self keeps for the view alone.
        Ok(unsafe { TensorMut::from_raw(self.view(offset, dtype, shape)?, Place::Buffer) })
    }

    fn view(&self, offset: u64, dtype: Dtype, shape: &[i64]) -> Result<sys::ds41_tensor> {
        let mut raw = init_tensor(std::ptr::null_mut(), dtype.to_raw(), shape);
        let (needed, there) = (n_bytes(&raw)?, self.n_bytes());
        if offset > there || there - offset < needed {
            let message = format!("{dtype} {shape:?} has {needed} bytes at {offset}, need a part of {there} bytes");
            return Err(Error::new(Status::InvalidShape, message));
        }
        // SAFETY: the offset is inside the buffer or at its end.
        raw.data = unsafe { sys::ds41_buffer_get_data(self.handle.as_ptr()).cast::<u8>().add(offset as usize).cast() };
        Ok(raw)
    }
}
