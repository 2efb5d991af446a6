//! What one sequence keeps.
use crate::error::Result;
use crate::model::{Inner, Model};
use crate::native::{call, create, Handle};
use ds41_sys as sys;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// State of one sequence in every layer, in pages that grow with it. `Send`, but not `Sync`; steps take it `&mut`.
#[derive(Debug)]
pub struct Sequence<'w> {
    handle: Handle<sys::ds41_seq>,
    _model: Arc<Inner<'w>>,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: "Any other object is used by one thread at a time", whichever.
unsafe impl Send for Sequence<'_> {}

impl<'w> Sequence<'w> {
    /// An empty sequence, which takes no cache memory.
    pub fn new(model: &Model<'w>) -> Result<Self> {
        // SAFETY: a place for the handle, and a model that is alive.
        let handle = create(sys::ds41_seq_destroy, |seq| unsafe { sys::ds41_seq_create(seq, model.inner.as_ptr()) })?;
        Ok(Self { handle, _model: model.inner.clone(), not_sync: PhantomData })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ds41_seq {
        self.handle.as_ptr()
    }

    /// Forget all tokens, in every layer; pages are kept for reuse. A step that uses the sequence is over.
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: the handle is alive, here and below.
        call(|| unsafe { sys::ds41_seq_reset(self.as_ptr()) })
    }

    /// Tokens that a layer has seen, which is the `start_pos` of its next step. Errors: `InvalidLayer`.
    pub fn position(&self, layer: i32) -> Result<i64> {
        let mut position = 0;
        call(|| unsafe { sys::ds41_seq_get_position(self.as_ptr(), layer, &mut position) })?;
        Ok(position)
    }

    /// The furthest position that any layer has reached.
    pub fn furthest_position(&self) -> Result<i64> {
        self.position(sys::DS41_ALL_LAYERS)
    }

    /// Allocate pages for the first `n_positions` tokens in every layer whose weights are set, so that steps up to there
    /// allocate no cache memory. Errors: `InvalidArgument`, `OutOfMemory` (what was allocated is kept).
    pub fn reserve(&mut self, n_positions: i64) -> Result<()> {
        call(|| unsafe { sys::ds41_seq_reserve(self.as_ptr(), n_positions) })
    }

    /// Bytes of cache memory that the sequence holds now.
    pub fn n_bytes(&self) -> u64 {
        unsafe { sys::ds41_seq_get_bytes(self.as_ptr()) }
    }
}
