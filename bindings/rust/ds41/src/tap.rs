//! Looking into a layer.
use crate::native::{guarded, static_text};
use crate::tensor::{Place, Tensor};
use ds41_sys as sys;
use std::ffi::c_void;

/// One intermediate of a layer: [`Context::set_tap`](crate::Context::set_tap). Names and shapes are in `ds41.h`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tap<'a> {
    /// The layer that runs.
    pub layer: i32,
    /// Index of the span in the step.
    pub span: i32,
    /// Tokens of the span.
    pub n_tokens: i32,
    /// Position of its first token.
    pub start_pos: i64,
    /// Which intermediate it is, such as "idx".
    pub name: &'static str,
    /// In host memory, for the call.
    pub tensor: Tensor<'a>,
}

/// What the user pointer of the callback leads to.
pub(crate) struct OnTap(pub(crate) Box<dyn FnMut(Tap<'_>) + Send>);

pub(crate) unsafe extern "C" fn on_tap(tap: *const sys::ds41_tap, user: *mut c_void) {
    guarded((), || {
        // SAFETY: the pointer was given with this function and is the context's, which runs a layer on this thread.
        // The struct and the tensor are valid for the call.
        let (tap, closure) = unsafe { (*tap, &mut *user.cast::<OnTap>()) };
        let sys::ds41_tap { struct_size: _, layer, span, n_tokens, start_pos, name, tensor } = tap;
        let (name, tensor) = unsafe { (static_text(name), Tensor::from_raw(tensor, Place::Host)) };
        (closure.0)(Tap { layer, span, n_tokens, start_pos, name, tensor });
    });
}
