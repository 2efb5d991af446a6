//! Contexts and their steps.
use crate::buffer::{Access, Used};
use crate::error::{Error, Result, Status};
use crate::graph::{discard, Home};
use crate::model::{Inner, Model};
use crate::native::{c_string, call, create, init, Handle, Pinned};
use crate::parallel::{on_parallel, Parallel, Tasks};
use crate::sequence::Sequence;
use crate::tap::{on_tap, OnTap, Tap};
use crate::tensor::{Place, Tensor, TensorMut};
use ds41_sys as sys;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

/// How a context works. All is optional.
pub struct ContextOptions {
    n_threads: i32,
    flags: u32,
    topk_end_pos: i64,
    attention_split: i32,
    stream: *mut c_void,
    parallel: Option<Pinned<Parallel>>,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self { n_threads: 0, flags: 0, topk_end_pos: 0, attention_split: 0, stream: ptr::null_mut(), parallel: None }
    }
}

impl ContextOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Threads that a step may use, the caller's among them: 1 for none but it; 0, the default: as many as CPUs that the
    /// process may run on. Outputs are the same bits for any number.
    pub fn n_threads(mut self, n: i32) -> Self {
        self.n_threads = n;
        self
    }

    /// Bind each thread of the context, but not the caller's, to a CPU of its own (Linux).
    pub fn pin_threads(mut self, on: bool) -> Self {
        self.flags = if on { sys::DS41_CTX_PIN_THREADS } else { 0 };
        self
    }

    /// [`TopkRule::TorchCpu`](crate::TopkRule::TorchCpu) only: rank as if each prefill ended at this position when its
    /// chunk ends before it. 0: at the end of the chunk.
    pub fn topk_end_pos(mut self, position: i64) -> Self {
        self.topk_end_pos = position;
        self
    }

    /// CUDA: thread blocks that share the attention of a token's heads, 1 to 8; 0, the default: as many as fill a GPU.
    /// Outputs are the same bits for any number. Without effect on other backends.
    pub fn attention_split(mut self, n: i32) -> Self {
        self.attention_split = n;
        self
    }

    /// A CUDA stream, on a CUDA backend.
    ///
    /// # Safety
    ///
    /// A stream of the model's device that lives until the context is dropped.
    pub unsafe fn stream(mut self, stream: *mut c_void) -> Self {
        self.stream = stream;
        self
    }

    /// A parallel-for of the caller's, instead of threads of the context: runs each of the tasks once, on any threads,
    /// and returns when they have returned. Tasks that it leaves out are run behind it, on the step's thread. When it
    /// panics, the panic goes on when the call in progress has ended.
    ///
    /// ```
    /// let options = ds41::ContextOptions::new().n_threads(4).parallel(|tasks| {
    ///     std::thread::scope(|scope| {
    ///         for index in 1..tasks.len() {
    ///             scope.spawn(move || tasks.run(index));
    ///         }
    ///         tasks.run(0);
    ///     });
    /// });
    /// # let _ = options;
    /// ```
    pub fn parallel(mut self, parallel: impl FnMut(&Tasks<'_>) + Send + 'static) -> Self {
        self.parallel = Some(Pinned::new(Parallel::new(Box::new(parallel))));
        self
    }
}

impl fmt::Debug for ContextOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_threads, flags, topk_end_pos, attention_split, stream, parallel } = self;
        f.debug_struct("ContextOptions")
            .field("n_threads", n_threads)
            .field("flags", flags)
            .field("topk_end_pos", topk_end_pos)
            .field("attention_split", attention_split)
            .field("stream", stream)
            .field("parallel", &parallel.is_some())
            .finish()
    }
}

/// New tokens of one sequence in a decode step.
#[derive(Debug)]
pub struct Span<'s, 'w> {
    sequence: &'s mut Sequence<'w>,
    start_pos: i64,
    n_tokens: i32,
}

impl<'s, 'w> Span<'s, 'w> {
    /// `start_pos` is the position of the first token ([`Sequence::position`]); `n_tokens` is 1 for a decode step, a few
    /// to verify drafts.
    pub fn new(sequence: &'s mut Sequence<'w>, start_pos: i64, n_tokens: i32) -> Self {
        Self { sequence, start_pos, n_tokens }
    }
}

/// Executes steps. `Send`, but not `Sync`; whatever runs takes it `&mut`.
///
/// A step is a list of spans taken through the layers in ascending order: with [`prefill`](Self::prefill) one span
/// layer by layer, with [`decode_prep`](Self::decode_prep) several at once. Layers may be left out, but what a layer
/// reads must have been published in the same step by the layer that its role names.
///
/// It cannot be shared between threads, only moved:
///
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<ds41::Context<'static>>();
/// ```
pub struct Context<'w> {
    handle: ManuallyDrop<Handle<sys::ds41_ctx>>, // dropped before the others, which it may use
    pub(crate) home: Home,
    pub(crate) left_open: bool, // perhaps a capture that could not be ended, since its stream is still captured
    tap: Option<Pinned<OnTap>>,
    _parallel: Option<Pinned<Parallel>>,
    spans: Vec<sys::ds41_span>, // empty between calls; kept, so that a step allocates nothing once it is large enough
    pub(crate) model: Arc<Inner<'w>>,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: "Any other object is used by one thread at a time", whichever; the closures are Send.
unsafe impl Send for Context<'_> {}

impl<'w> Context<'w> {
    /// Errors: `InvalidArgument` (an option that is out of range, a stream on a backend without streams), `NoBackend`
    /// (the environment variable `DS41_CPU_TARGET` names no instruction set of this machine), `OutOfMemory`.
    pub fn new(model: &Model<'w>, options: ContextOptions) -> Result<Self> {
        let defaults = init(sys::ds41_ctx_options_init);
        let raw = sys::ds41_ctx_options {
            struct_size: defaults.struct_size,
            attention_split: options.attention_split,
            stream: options.stream,
            topk_end_pos: options.topk_end_pos,
            n_threads: options.n_threads,
            flags: options.flags,
            parallel: options.parallel.as_ref().map(|_| on_parallel as _),
            parallel_user: options.parallel.as_ref().map_or(ptr::null_mut(), |parallel| parallel.as_ptr().cast()),
        };
        // SAFETY: a struct that was initialised, and what it points to is kept beside the handle.
        let handle =
            create(sys::ds41_ctx_destroy, |ctx| unsafe { sys::ds41_ctx_create(ctx, model.inner.as_ptr(), &raw) })?;
        Ok(Self {
            handle: ManuallyDrop::new(handle),
            home: Home::new(),
            left_open: false,
            tap: None,
            _parallel: options.parallel,
            spans: Vec::new(),
            model: model.inner.clone(),
            not_sync: PhantomData,
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ds41_ctx {
        self.handle.as_ptr()
    }

    /// Run one layer over new tokens of one sequence, as many as `x` has rows. The first call of a step begins it; calls
    /// for further layers with the same sequence, number of tokens and `start_pos` belong to it. Chunks continue: a
    /// prompt in chunks of any sizes leaves the same state and gives the same bits.
    ///
    /// `x` is the layer's input after its attention norm, BF16 `[n_tokens, dim]`; `out` is the same size and untouched
    /// when an error is returned.
    ///
    /// Errors: `InvalidArgument` (no tokens, misaligned data, a sequence of another model), `InvalidLayer`,
    /// `MissingWeights`, `InvalidDtype`, `InvalidShape`, `InvalidPosition` (`start_pos` is not where the layer stands, or
    /// the end is beyond `max_seq_len`), `WrongOrder` (not above the step's last layer, or a layer it reads from has not
    /// run in it), `OutOfMemory`.
    pub fn prefill(
        &mut self,
        layer: i32,
        sequence: &mut Sequence<'_>,
        x: &Tensor<'_>,
        start_pos: i64,
        out: &mut TensorMut<'_>,
    ) -> Result<()> {
        self.run_prefill(layer, sequence, x, start_pos, &out.as_tensor())
    }

    /// [`prefill`](Self::prefill) with the output in the place of the input.
    pub fn prefill_in_place(
        &mut self,
        layer: i32,
        sequence: &mut Sequence<'_>,
        x: &mut TensorMut<'_>,
        start_pos: i64,
    ) -> Result<()> {
        let x = x.as_tensor();
        self.run_prefill(layer, sequence, &x, start_pos, &x)
    }

    fn run_prefill(
        &mut self,
        layer: i32,
        sequence: &mut Sequence<'_>,
        x: &Tensor<'_>,
        start_pos: i64,
        out: &Tensor<'_>,
    ) -> Result<()> {
        self.tidy();
        self.check_places(x, out)?;
        let &[n_rows, _] = x.shape() else {
            let message = format!("x has shape {:?}, need [n_tokens, dim]", x.shape());
            return Err(Error::new(Status::InvalidShape, message));
        };
        let n_tokens = i32::try_from(n_rows).map_err(|_| {
            Error::new(Status::InvalidArgument, format!("x has {n_rows} rows, need at most {} tokens", i32::MAX))
        })?;
        let _used = used(x, out)?;
        // SAFETY: the handles are alive and this call's alone; the memory is there for the call, which waits.
        call(|| unsafe {
            let (ctx, seq) = (self.as_ptr(), sequence.as_ptr());
            sys::ds41_layer_prefill(ctx, layer, seq, &x.raw, n_tokens, start_pos, &out.raw)
        })?;
        self.wait()
    }

    /// Begin a step of several sequences: the host's part, once for all layers. The step borrows the context and the
    /// sequences until it is dropped.
    ///
    /// Errors: `InvalidArgument` (no spans, a count out of range, a sequence of another model), `InvalidPosition` (no
    /// layer of the sequence stands at `start_pos`, or the end is beyond `max_seq_len`), `MissingWeights`, `OutOfMemory`.
    pub fn decode_prep<'s, 'm: 's>(
        &'s mut self,
        spans: impl IntoIterator<Item = Span<'s, 'm>>,
    ) -> Result<DecodeStep<'s, 'w>> {
        self.tidy();
        self.spans.clear(); // of an iterator that has panicked
        self.spans.extend(spans.into_iter().map(|Span { sequence, start_pos, n_tokens }| sys::ds41_span {
            seq: sequence.as_ptr(),
            start_pos,
            n_tokens,
            reserved: 0,
        }));
        let n_spans = i32::try_from(self.spans.len()).unwrap_or(i32::MAX);
        // SAFETY: the sequences are alive and borrowed, each once, for 's: until the step is dropped.
        let result = call(|| unsafe { sys::ds41_decode_prep(self.as_ptr(), self.spans.as_ptr(), n_spans) });
        self.spans.clear();
        result?;
        Ok(DecodeStep { context: self })
    }

    /// Wait until everything that was enqueued has finished; reports faults of that work.
    pub fn synchronize(&mut self) -> Result<()> {
        self.tidy();
        // SAFETY: the handle is alive, here and below.
        call(|| unsafe { sys::ds41_ctx_synchronize(self.as_ptr()) })
    }

    /// Whether the decode body of a layer may be captured into a graph ([`DecodeStep::capture`]) as the context stands:
    /// not on backends without graphs (cpu, reference), nor while a tap is set, nor an index source with
    /// [`TopkRule::TorchCpu`](crate::TopkRule::TorchCpu). Errors: `InvalidLayer`.
    pub fn is_capturable(&self, layer: i32) -> Result<bool> {
        let mut capturable = 0;
        call(|| unsafe { sys::ds41_decode_capturable(self.as_ptr(), layer, &mut capturable) })?;
        Ok(capturable != 0)
    }

    /// Bytes of workspace that the context holds now.
    pub fn n_bytes(&self) -> u64 {
        unsafe { sys::ds41_ctx_get_bytes(self.as_ptr()) }
    }

    /// Deliver named intermediates of further layers to a closure, on this thread, before the layer's call returns;
    /// replaces the previous one. No names: all of them. Outputs are the same bits with or without a tap. When the
    /// closure panics, the panic goes on when the layer has run.
    ///
    /// ```no_run
    /// # fn context() -> ds41::Context<'static> { unimplemented!() }
    /// # let mut context = context();
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// context.set_tap(&["idx"], move |tap| {
    ///     let rows = tap.tensor.to_vec::<i32>().unwrap();
    ///     sender.send((tap.layer, rows)).unwrap();
    /// })?;
    /// // ... run layers, then look at what receiver.try_iter() has
    /// # Ok::<(), ds41::Error>(())
    /// ```
    ///
    /// Errors: `InvalidArgument` for a name that there is not; the tap stays as it was.
    pub fn set_tap(&mut self, names: &[&str], tap: impl FnMut(Tap<'_>) + Send + 'static) -> Result<()> {
        let names: Vec<_> = names.iter().map(|name| c_string("tap", *name)).collect::<Result<_>>()?;
        let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let n_names = i32::try_from(pointers.len()).unwrap_or(i32::MAX);
        let tap = Pinned::new(OnTap(Box::new(tap)));
        // SAFETY: the names are copied; the closure is kept beside the handle until it is replaced.
        call(|| unsafe {
            sys::ds41_ctx_set_tap(self.as_ptr(), pointers.as_ptr(), n_names, Some(on_tap), tap.as_ptr().cast())
        })?;
        self.tap = Some(tap);
        Ok(())
    }

    /// Remove the tap, whose closure is dropped.
    pub fn clear_tap(&mut self) -> Result<()> {
        call(|| unsafe { sys::ds41_ctx_set_tap(self.as_ptr(), ptr::null(), 0, None, ptr::null_mut()) })?;
        self.tap = None;
        Ok(())
    }

    /// What dropped graphs, and a capture that could not be ended, have left behind.
    fn tidy(&mut self) {
        self.home.destroy_retired();
        if self.left_open && discard(self) {
            self.left_open = false;
        }
    }

    pub(crate) fn check_places(&self, x: &Tensor<'_>, out: &Tensor<'_>) -> Result<()> {
        for (name, tensor) in [("x", x), ("out", out)] {
            if matches!(tensor.place, Place::Mapped) || (!self.model.is_host() && tensor.memory().is_none()) {
                let message = format!("{name} is not on the model's device, need a slice on a CPU, else a Buffer");
                return Err(Error::new(Status::InvalidArgument, message));
            }
        }
        Ok(())
    }

    /// Tensors are borrowed for the call, the library borrows them until the work is done.
    pub(crate) fn wait(&mut self) -> Result<()> {
        if self.model.is_host() {
            return Ok(());
        }
        self.synchronize()
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: once, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.handle) };
        self.home.close();
    }
}

/// Keep the graphs of other threads away from the tensors of a call.
fn used<'a>(x: &Tensor<'a>, out: &Tensor<'a>) -> Result<[Option<Used<'a>>; 2]> {
    let used = |tensor: &Tensor<'a>, name, access| tensor.memory().map(|memory| memory.used(name, access)).transpose();
    let in_place = x.memory().zip(out.memory()).is_some_and(|(x, out)| Arc::ptr_eq(x, out));
    let x = if in_place { None } else { used(x, "x", Access::Read)? };
    Ok([x, used(out, "out", Access::Write)?])
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("model", &self.model).field("tap", &self.tap.is_some()).finish()
    }
}

/// A decode step in flight: [`Context::decode_prep`].
///
/// It keeps its sequences borrowed, so that none can be changed or dropped under it:
///
/// ```compile_fail,E0499
/// # use ds41::{Context, DecodeStep, Sequence, Span, TensorMut};
/// fn run(context: &mut Context, sequence: &mut Sequence, x: &mut TensorMut) -> ds41::Result<()> {
///     let mut step = context.decode_prep([Span::new(sequence, 12, 1)])?;
///     sequence.reset()?;
///     step.body_in_place(0, x)
/// }
/// ```
#[derive(Debug)]
pub struct DecodeStep<'s, 'w> {
    pub(crate) context: &'s mut Context<'w>,
}

impl DecodeStep<'_, '_> {
    /// Run one layer. Row i of `x` and `out`, BF16 `[n_rows, dim]`, is token i of the spans' tokens, one span after the
    /// other.
    ///
    /// Errors: `WrongOrder` (the layer is not above the last one, or a layer it reads from has not run in this step),
    /// `InvalidPosition` (the layer does not stand at the start of a span), `InvalidArgument`, `InvalidLayer`,
    /// `MissingWeights`, `InvalidDtype`, `InvalidShape`.
    pub fn body(&mut self, layer: i32, x: &Tensor<'_>, out: &mut TensorMut<'_>) -> Result<()> {
        self.run(layer, x, &out.as_tensor())
    }

    /// [`body`](Self::body) with the output in the place of the input.
    pub fn body_in_place(&mut self, layer: i32, x: &mut TensorMut<'_>) -> Result<()> {
        let x = x.as_tensor();
        self.run(layer, &x, &x)
    }

    fn run(&mut self, layer: i32, x: &Tensor<'_>, out: &Tensor<'_>) -> Result<()> {
        self.context.check_places(x, out)?;
        let _used = used(x, out)?;
        // SAFETY: the handle is alive, the sequences are borrowed; the memory is there for the call, which waits.
        call(|| unsafe { sys::ds41_decode_body(self.context.as_ptr(), layer, &x.raw, &out.raw) })?;
        self.context.wait()
    }

    /// The context, to ask it.
    pub fn context(&self) -> &Context<'_> {
        self.context
    }
}
