//! Memory on the model's device.
use crate::error::{Error, Result, Status};
use crate::log::Log;
use crate::model::{Inner, Model};
use crate::native::{call, create, init_tensor, Handle};
use crate::tensor::{n_bytes, Dtype, Element, Place, Tensor, TensorMut};
use ds41_sys as sys;
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of_val;
use std::sync::atomic::{AtomicI32, Ordering};
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
///
/// A [`Graph`](crate::Graph) that works on a buffer keeps its memory. While a launch on another thread uses it, calls
/// that would disturb it fail with `WrongOrder`.
#[derive(Debug)]
pub struct Buffer<'w> {
    memory: Arc<Memory>,
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
        let memory = Memory { handle, _log: model.inner.log(), users: AtomicI32::new(0) };
        Ok(Self { memory: Arc::new(memory), _model: model.inner.clone(), not_sync: PhantomData })
    }

    /// Its size.
    pub fn n_bytes(&self) -> u64 {
        // SAFETY: the handle is alive, here and below.
        unsafe { sys::ds41_buffer_get_bytes(self.as_ptr()) }
    }

    /// Its address on the device, for what the owner of a stream enqueues there
    /// ([`DecodeStep::capture_external`](crate::DecodeStep::capture_external)).
    pub fn as_device_ptr(&self) -> *mut c_void {
        unsafe { sys::ds41_buffer_get_data(self.as_ptr()) }
    }

    fn as_ptr(&self) -> *mut sys::ds41_buffer {
        self.memory.handle.as_ptr()
    }

    /// Copy elements to `offset`, in bytes. Errors: `InvalidArgument` (out of range), `WrongOrder` (this thread
    /// captures a graph).
    pub fn upload<T: Element>(&mut self, offset: u64, source: &[T]) -> Result<()> {
        let _used = self.memory.used("the buffer", Access::Write)?;
        let (data, n_bytes) = (source.as_ptr().cast(), size_of_val(source) as u64);
        call(|| unsafe { sys::ds41_buffer_upload(self.as_ptr(), offset, data, n_bytes) })
    }

    /// Copy elements from `offset`, in bytes. Errors: `InvalidArgument` (out of range), `WrongOrder` (this thread
    /// captures a graph).
    pub fn download<T: Element>(&self, offset: u64, target: &mut [T]) -> Result<()> {
        let _used = self.memory.used("the buffer", Access::Read)?;
        let (data, n_bytes) = (target.as_mut_ptr().cast(), size_of_val(target) as u64);
        call(|| unsafe { sys::ds41_buffer_download(self.as_ptr(), offset, data, n_bytes) })
    }

    /// View a part from `offset` on, in bytes, as an input. Errors: `InvalidShape` (out of range), `InvalidDtype`.
    pub fn tensor(&self, offset: u64, dtype: Dtype, shape: &[i64]) -> Result<Tensor<'_>> {
        // SAFETY: inside the buffer, which the borrow of self keeps.
        Ok(unsafe { Tensor::from_raw(self.view(offset, dtype, shape)?, Place::Buffer(&self.memory)) })
    }

    /// View a part from `offset` on, in bytes, as an output. Errors: as [`tensor`](Self::tensor).
    pub fn tensor_mut(&mut self, offset: u64, dtype: Dtype, shape: &[i64]) -> Result<TensorMut<'_>> {
        // SAFETY: inside the buffer, which the borrow of self keeps for the view alone.
        Ok(unsafe { TensorMut::from_raw(self.view(offset, dtype, shape)?, Place::Buffer(&self.memory)) })
    }

    fn view(&self, offset: u64, dtype: Dtype, shape: &[i64]) -> Result<sys::ds41_tensor> {
        let mut raw = init_tensor(std::ptr::null_mut(), dtype.to_raw(), shape);
        let (needed, there) = (n_bytes(&raw)?, self.n_bytes());
        if offset > there || there - offset < needed {
            let message = format!("{dtype} {shape:?} has {needed} bytes at {offset}, need a part of {there} bytes");
            return Err(Error::new(Status::InvalidShape, message));
        }
        // SAFETY: the offset is inside the buffer or at its end.
        raw.data = unsafe { self.as_device_ptr().cast::<u8>().add(offset as usize).cast() };
        Ok(raw)
    }
}

/// What a buffer has on the device. Graphs whose launches use it keep it, and may outlive buffer and model.
#[derive(Debug)]
pub(crate) struct Memory {
    handle: Handle<sys::ds41_buffer>,
    _log: Option<Arc<Log>>,
    users: AtomicI32, // calls that read it now; WRITTEN: one that writes to it
}

const WRITTEN: i32 = -1;

// SAFETY: whatever reads or writes it says so first, see `used`; its address and size do not change.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Memory {
    /// Keep other threads out until the result is dropped. The borrows of tensors and buffers do so among themselves,
    /// but know nothing of the graphs that keep their memory.
    pub(crate) fn used(&self, name: &str, access: Access) -> Result<Used<'_>> {
        let taken = self.users.fetch_update(Ordering::Acquire, Ordering::Relaxed, |users| match access {
            Access::Read if users != WRITTEN => Some(users + 1),
            Access::Write if users == 0 => Some(WRITTEN),
            _ => None,
        });
        if taken.is_err() {
            let message = format!("{name} lies in a buffer that another thread uses, need it done first");
            return Err(Error::new(Status::WrongOrder, message));
        }
        Ok(Used { memory: self, access })
    }
}

/// Memory that a call uses.
#[derive(Debug)]
pub(crate) struct Used<'a> {
    memory: &'a Memory,
    access: Access,
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        match self.access {
            Access::Read => self.memory.users.fetch_sub(1, Ordering::Release),
            Access::Write => self.memory.users.swap(0, Ordering::Release),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ModelBuilder, ModelOptions};

    #[test]
    fn memory_that_is_written_to_has_one_user() {
        let model = ModelBuilder::new(&Config::flash(), &ModelOptions::new().backend("cpu")).unwrap().build();
        let mut buffer = Buffer::new(&model, 4).unwrap();
        let memory = buffer.memory.clone(); // as a graph has it
        let refused = |result: Result<()>| {
            let error = result.unwrap_err();
            assert_eq!((error.status(), error.message().contains("another thread")), (Status::WrongOrder, true));
        };
        let reading = [memory.used("x", Access::Read).unwrap(), memory.used("x", Access::Read).unwrap()];
        buffer.download(0, &mut [0i32]).unwrap();
        refused(buffer.upload(0, &[1i32]));
        drop(reading);
        buffer.upload(0, &[1i32]).unwrap();
        let writing = memory.used("out", Access::Write).unwrap();
        refused(memory.used("x", Access::Read).map(drop));
        refused(memory.used("x", Access::Write).map(drop));
        refused(buffer.upload(0, &[1i32]));
        refused(buffer.download(0, &mut [0i32]));
        drop(writing);
        buffer.upload(0, &[2i32]).unwrap();
    }
}
