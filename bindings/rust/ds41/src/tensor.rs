//! Views of memory for the library.
use crate::bf16::Bf16;
use crate::buffer::Memory;
use crate::error::{Error, Result, Status};
use crate::native::{call, init_tensor, static_text};
use ds41_sys as sys;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{align_of, size_of, size_of_val};
use std::sync::Arc;

macro_rules! dtypes {
    ($($(#[doc = $doc:literal])* $name:ident = $raw:ident,)*) => {
        /// What the elements of a tensor are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(non_camel_case_types)]
        pub enum Dtype {
            $($(#[doc = $doc])* $name,)*
            /// A number that this version of the crate does not know.
            Unknown(i32),
        }

        impl Dtype {
            pub(crate) fn from_raw(raw: i32) -> Self {
                match sys::ds41_dtype(raw) {
                    $(sys::$raw => Self::$name,)*
                    sys::ds41_dtype(number) => Self::Unknown(number),
                }
            }

            pub(crate) fn to_raw(self) -> i32 {
                match self {
                    $(Self::$name => sys::$raw.0,)*
                    Self::Unknown(number) => number,
                }
            }
        }
    };
}

dtypes! {
    /// No tensor here.
    None = DS41_DTYPE_NONE,
    /// 32-bit floating point.
    F32 = DS41_DTYPE_F32,
    /// bfloat16: [`Bf16`](crate::Bf16).
    Bf16 = DS41_DTYPE_BF16,
    /// OCP e4m3 "fn" codes with one UE8M0 scale byte per 32 x 32 block.
    Fp8E4m3 = DS41_DTYPE_FP8_E4M3,
    /// ggml Q2_K: 84 bytes per 256 values of a row. Shapes count values.
    Q2_K = DS41_DTYPE_Q2_K,
    /// Taps and files only.
    I32 = DS41_DTYPE_I32,
    /// Taps and files only.
    U8 = DS41_DTYPE_U8,
    /// Files only.
    I8 = DS41_DTYPE_I8,
    /// Files only.
    F16 = DS41_DTYPE_F16,
    /// Files only: power-of-two scale bytes.
    Ue8m0 = DS41_DTYPE_UE8M0,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: any number is accepted; the string is static.
        f.write_str(unsafe { static_text(sys::ds41_dtype_name(self.to_raw())) })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Types that slices of tensors may have: plain numbers, of which any bits are one.
///
/// # Safety
///
/// Only this crate implements it.
pub unsafe trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// What tensors of such elements have.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($element:ty: $dtype:ident),*) => {
        $(
            impl sealed::Sealed for $element {}
            // SAFETY: a plain number.
            unsafe impl Element for $element {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}

elements!(f32: F32, Bf16: Bf16, i32: I32, u8: U8, i8: I8);

/// Whose memory a tensor looks at, which decides what it may be used for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// A slice, or memory that the library lends to a tap.
    Host,
    /// A file's mapping: another process may change it, so no reference to it is ever made.
    Mapped,
    /// A [`Buffer`](crate::Buffer)'s, which may be another device's memory, and a graph's as well.
    Buffer(&'a Arc<Memory>),
}

/// A view of memory that somebody else owns, row-major and contiguous: input activations or weights.
///
/// Made from a slice, or lent by a [`File`](crate::File), a [`Buffer`](crate::Buffer) or a tap. Copying it copies the
/// view. The data outlives it:
///
/// ```compile_fail,E0597
/// use ds41::{Bf16, Tensor};
/// let x = {
///     let data = vec![Bf16::ZERO; 8];
///     Tensor::new(&data, &[2, 4]).unwrap()
/// };
/// println!("{:?}", x.shape());
/// ```
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::ds41_tensor,
    pub(crate) place: Place<'a>,
    data: PhantomData<&'a [u8]>,
}

// SAFETY: a shared borrow of plain numbers.
unsafe impl Send for Tensor<'_> {}
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// View a slice. Its length must be the product of `shape`, outermost first.
    ///
    /// ```
    /// use ds41::{Bf16, Dtype, Status, Tensor};
    /// let rows = [Bf16::ZERO; 6];
    /// assert_eq!(Tensor::new(&rows, &[2, 3]).unwrap().dtype(), Dtype::Bf16);
    /// assert_eq!(Tensor::new(&rows, &[2, 4]).unwrap_err().status(), Status::InvalidShape);
    /// ```
    pub fn new<T: Element>(data: &'a [T], shape: &[i64]) -> Result<Self> {
        // SAFETY: plain numbers are bytes.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) };
        Self::from_bytes(T::DTYPE, bytes, shape)
    }

    /// View the bytes of any dtype.
    pub fn from_bytes(dtype: Dtype, data: &'a [u8], shape: &[i64]) -> Result<Self> {
        let raw = init_tensor(data.as_ptr().cast_mut().cast(), dtype.to_raw(), shape);
        check_length("data", data.len(), &raw)?;
        // SAFETY: the bytes are there for 'a, which was just checked.
        Ok(unsafe { Self::from_raw(raw, Place::Host) })
    }

    /// An FP8 matrix: e4m3 codes `[rows, cols]`, and UE8M0 scale bytes `[ceil(rows / 32), cols / 32]`.
    ///
    /// ```
    /// use ds41::{Status, Tensor};
    /// let (codes, scales) = ([0x38; 64 * 96], [127; 2 * 3]);
    /// assert_eq!(Tensor::fp8(&codes, &scales, 64, 96).unwrap().shape(), [64, 96]);
    /// assert_eq!(Tensor::fp8(&codes, &scales[1..], 64, 96).unwrap_err().status(), Status::InvalidShape);
    /// ```
    pub fn fp8(codes: &'a [u8], scales: &'a [u8], rows: i64, cols: i64) -> Result<Self> {
        let mut tensor = Self::from_bytes(Dtype::Fp8E4m3, codes, &[rows, cols])?;
        let shape = [rows / 32 + i64::from(rows % 32 != 0), cols / 32];
        check_length("scales", scales.len(), &init_tensor(std::ptr::null_mut(), Dtype::Ue8m0.to_raw(), &shape))?;
        tensor.raw.scales = scales.as_ptr().cast();
        tensor.raw.scale_shape = shape;
        Ok(tensor)
    }

    /// A Q2_K matrix of `rows` times `cols` values in blocks of 84 bytes, each for 256 values of a row.
    pub fn q2_k(blocks: &'a [u8], rows: i64, cols: i64) -> Result<Self> {
        Self::from_bytes(Dtype::Q2_K, blocks, &[rows, cols])
    }

    /// Take the bytes of a file, `[rows, cols / 256 * 84]`, for Q2_K blocks, which safetensors has no dtype for.
    pub fn into_q2_k(mut self) -> Result<Self> {
        let cols = self.raw.shape[1];
        if self.dtype() != Dtype::U8 || self.raw.n_dims != 2 || cols % 84 != 0 {
            let message = format!("the tensor is {self:?}, need U8 [rows, a multiple of 84] for Q2_K blocks");
            return Err(Error::new(Status::InvalidShape, message));
        }
        self.raw.dtype = Dtype::Q2_K.to_raw();
        self.raw.shape[1] = cols / 84 * 256;
        Ok(self)
    }

    /// Multiply these quantised weights with the bf16 activations as they are, instead of quantising them first.
    pub fn plain_activations(mut self) -> Self {
        self.raw.flags |= sys::DS41_TENSOR_PLAIN_ACTIVATIONS;
        self
    }

    /// # Safety
    ///
    /// What `raw` points to, in the size of its dtype and shape, is there for `'a`.
    pub(crate) unsafe fn from_raw(raw: sys::ds41_tensor, place: Place<'a>) -> Self {
        Self { raw, place, data: PhantomData }
    }

    /// The buffer's memory that it lies in, if it does.
    pub(crate) fn memory(&self) -> Option<&'a Arc<Memory>> {
        match self.place {
            Place::Buffer(memory) => Some(memory),
            Place::Host | Place::Mapped => None,
        }
    }

    /// What its elements are.
    pub fn dtype(&self) -> Dtype {
        Dtype::from_raw(self.raw.dtype)
    }

    /// Elements, outermost first.
    pub fn shape(&self) -> &[i64] {
        shape(&self.raw)
    }

    /// Bytes of the data, scales not counted.
    pub fn n_bytes(&self) -> Result<u64> {
        n_bytes(&self.raw)
    }

    /// The scales of an FP8 tensor: shape, and a copy of their bytes.
    pub fn scales(&self) -> Option<([i64; 2], Vec<u8>)> {
        if self.raw.scales.is_null() || self.memory().is_some() {
            return None;
        }
        let [rows, cols] = self.raw.scale_shape;
        let mut bytes = vec![0; usize::try_from(rows).ok()?.checked_mul(usize::try_from(cols).ok()?)?];
        // SAFETY: that many are there.
        unsafe { std::ptr::copy_nonoverlapping(self.raw.scales.cast(), bytes.as_mut_ptr(), bytes.len()) };
        Some(([rows, cols], bytes))
    }

    /// The elements, where they are a slice. Not for tensors of files, which other processes may change, and of
    /// buffers: [`to_vec`](Self::to_vec) and [`Buffer::download`](crate::Buffer::download) copy those.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        let n = self.count::<T>()?;
        let elsewhere = match self.place {
            Place::Host => None,
            Place::Mapped => Some("mapped file"),
            Place::Buffer(_) => Some("buffer"),
        };
        if let Some(what) = elsewhere {
            return Err(Error::new(Status::InvalidArgument, format!("the tensor lies in a {what}, need a copy of it")));
        }
        if self.raw.data as usize % align_of::<T>() != 0 {
            let message = format!("the tensor's data is not aligned to its elements of {} bytes", size_of::<T>());
            return Err(Error::new(Status::InvalidArgument, message));
        }
        if n == 0 {
            return Ok(&[]);
        }
        // SAFETY: there for 'a, aligned, and any bits are an element.
        Ok(unsafe { std::slice::from_raw_parts(self.raw.data.cast(), n) })
    }

    /// A copy of the elements, which the memory need not be aligned for.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let n = self.count::<T>()?;
        let mut elements: Vec<T> = Vec::with_capacity(n);
        self.copy_to(elements.as_mut_ptr().cast(), n * size_of::<T>())?;
        // SAFETY: all were written.
        unsafe { elements.set_len(n) };
        Ok(elements)
    }

    /// A copy of the bytes of any dtype.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let n = usize::try_from(self.n_bytes()?).map_err(|_| too_large())?;
        let mut bytes: Vec<u8> = Vec::with_capacity(n);
        self.copy_to(bytes.as_mut_ptr(), n)?;
        // SAFETY: all were written.
        unsafe { bytes.set_len(n) };
        Ok(bytes)
    }

    /// Number of elements, if they are of type T.
    fn count<T: Element>(&self) -> Result<usize> {
        if self.dtype() != T::DTYPE {
            let message = format!("the tensor has dtype {}, which is not {}", self.dtype(), T::DTYPE);
            return Err(Error::new(Status::InvalidDtype, message));
        }
        Ok(usize::try_from(self.n_bytes()?).map_err(|_| too_large())? / size_of::<T>())
    }

    fn copy_to(&self, target: *mut u8, n_bytes: usize) -> Result<()> {
        if self.memory().is_some() {
            let message = "the tensor lies in a buffer, need Buffer::download to copy it";
            return Err(Error::new(Status::InvalidArgument, message));
        }
        // SAFETY: that many bytes are there, and the target is of that size and its own.
        unsafe { std::ptr::copy_nonoverlapping(self.raw.data.cast(), target, n_bytes) };
        Ok(())
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.dtype(), self.shape())
    }
}

/// A view of memory that the library writes to: output activations.
#[derive(Debug)]
pub struct TensorMut<'a> {
    view: Tensor<'a>,
    exclusive: PhantomData<&'a mut [u8]>,
}

impl<'a> TensorMut<'a> {
    /// View a slice. Its length must be the product of `shape`, outermost first.
    ///
    /// While it is viewed nobody else uses it:
    ///
    /// ```compile_fail,E0502
    /// use ds41::{Bf16, Tensor, TensorMut};
    /// let mut rows = [Bf16::ZERO; 8];
    /// let mut out = TensorMut::new(&mut rows, &[2, 4]).unwrap();
    /// let x = Tensor::new(&rows, &[2, 4]).unwrap();
    /// drop((out, x));
    /// ```
    pub fn new<T: Element>(data: &'a mut [T], shape: &[i64]) -> Result<Self> {
        let raw = init_tensor(data.as_mut_ptr().cast(), T::DTYPE.to_raw(), shape);
        check_length("data", size_of_val(data), &raw)?;
        // SAFETY: the bytes are there for 'a and borrowed exclusively.
        Ok(unsafe { Self::from_raw(raw, Place::Host) })
    }

    /// # Safety
    ///
    /// As `Tensor::from_raw`, and nobody else uses the memory for `'a`.
    pub(crate) unsafe fn from_raw(raw: sys::ds41_tensor, place: Place<'a>) -> Self {
        Self { view: unsafe { Tensor::from_raw(raw, place) }, exclusive: PhantomData }
    }

    /// The same memory, for reading.
    pub fn as_tensor(&self) -> Tensor<'_> {
        self.view
    }

    /// What its elements are.
    pub fn dtype(&self) -> Dtype {
        self.view.dtype()
    }

    /// Elements, outermost first.
    pub fn shape(&self) -> &[i64] {
        self.view.shape()
    }
}

pub(crate) fn shape(raw: &sys::ds41_tensor) -> &[i64] {
    let n_dims = usize::try_from(raw.n_dims).unwrap_or(0);
    &raw.shape[..n_dims.min(raw.shape.len())]
}

pub(crate) fn n_bytes(raw: &sys::ds41_tensor) -> Result<u64> {
    let mut n_bytes = 0;
    // SAFETY: both pointers are good for the call.
    call(|| unsafe { sys::ds41_tensor_get_bytes(raw, &mut n_bytes) })?;
    Ok(n_bytes)
}

fn check_length(what: &str, length: usize, raw: &sys::ds41_tensor) -> Result<()> {
    let needed = n_bytes(raw)?;
    if needed == length as u64 {
        return Ok(());
    }
    let (dtype, shape) = (Dtype::from_raw(raw.dtype), shape(raw));
    let message = format!("{what} has {length} bytes, need {needed} ({dtype} {shape:?})");
    Err(Error::new(Status::InvalidShape, message))
}

fn too_large() -> Error {
    Error::new(Status::OutOfMemory, "the tensor is larger than the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_of_the_header_has_a_variant() {
        for (raw, name) in sys::ds41_dtype::ALL {
            let dtype = Dtype::from_raw(raw.0);
            assert!(!matches!(dtype, Dtype::Unknown(_)), "{name} has no variant");
            assert_eq!((dtype.to_raw(), format!("DS41_DTYPE_{dtype}").as_str()), (raw.0, *name));
        }
        assert_eq!(Dtype::Unknown(77).to_string(), "unknown dtype");
    }
}
