//! Captured decode steps.
use crate::buffer::{Access, Memory};
use crate::context::{Context, DecodeStep};
use crate::error::{Error, Result, Status};
use crate::model::Inner;
use crate::native::{call, create, take_panic, Handle};
use crate::tensor::{Tensor, TensorMut};
use ds41_sys as sys;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The device half of a decode step, or of some layers of one, as one launch: [`DecodeStep::capture`]. `Send`, but not
/// `Sync`.
///
/// It keeps the memory of the buffers that its layers work on, which may be dropped. Its context may be dropped, too:
/// then there is nothing to launch it on any more. What a dropped graph has on the device is given back by the next
/// call that its context waits or begins a step in, on the thread of that call, or by the context's end.
///
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<ds41::Graph<'static>>();
/// ```
pub struct Graph<'w> {
    handle: Option<Handle<sys::ds41_graph>>, // until it is dropped
    uses: Vec<Use>,
    home: Home,
    _model: Arc<Inner<'w>>,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: it is launched by the thread that has its context, and destroyed by it or after its end.
unsafe impl Send for Graph<'_> {}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("handle", &self.handle).finish()
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        let mut home = self.home.lock();
        if home.is_open {
            home.retired.push(handle); // another thread may be in a call of the context
        } else {
            drop(home);
            drop(handle);
        }
    }
}

/// A buffer's memory whose address a graph keeps.
#[derive(Debug)]
struct Use {
    memory: Arc<Memory>,
    name: &'static str,
    access: Access,
}

/// What a context and its graphs share: by it they know each other, and here dropped graphs wait for the context.
#[derive(Clone)]
pub(crate) struct Home(Arc<Mutex<Shared>>);

struct Shared {
    is_open: bool,
    retired: Vec<Handle<sys::ds41_graph>>,
}

// SAFETY: handles on their way to the context's thread, or to any after its end.
unsafe impl Send for Shared {}

impl Home {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Shared { is_open: true, retired: Vec::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On the context's thread, while it is in no other call.
    pub(crate) fn destroy_retired(&self) {
        let retired = mem::take(&mut self.lock().retired);
        drop(retired); // not under the lock
    }

    /// After the context's end.
    pub(crate) fn close(&self) {
        self.lock().is_open = false;
        self.destroy_retired();
    }
}

/// A capture: what its layers are told is recorded, not run.
///
/// It belongs to the thread that has begun it:
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<ds41::Capture<'static, 'static>>();
/// ```
pub struct Capture<'c, 'w> {
    context: &'c mut Context<'w>,
    uses: Vec<Use>,
    is_external: bool,
    is_going_on: bool,
    not_send: PhantomData<*mut ()>,
}

impl fmt::Debug for Capture<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("context", self.context).finish()
    }
}

impl<'c, 'w> Capture<'c, 'w> {
    fn begin(context: &'c mut Context<'w>, flags: u32) -> Result<Self> {
        let is_external = flags & sys::DS41_GRAPH_EXTERNAL != 0;
        let mut capture = Self { context, uses: Vec::new(), is_external, is_going_on: true, not_send: PhantomData };
        // SAFETY: the handle is alive and this call's alone, here and below.
        let begun = call(|| unsafe { sys::ds41_graph_begin(capture.context.as_ptr(), flags) });
        capture.is_going_on = begun.is_ok();
        begun.map(|()| capture)
    }

    /// Record one layer. `x` and `out`, BF16 `[n_rows, dim]`, lie in [`Buffer`](crate::Buffer)s; a launch uses the same
    /// places again.
    ///
    /// Errors: `Unsupported` (the layer cannot be captured: [`Context::is_capturable`]), `WrongOrder` (the layer is not
    /// above the last one), `InvalidArgument`, `InvalidLayer`, `MissingWeights`, `InvalidDtype`, `InvalidShape`. That
    /// what the layer reads has been published is checked by launches.
    pub fn body(&mut self, layer: i32, x: &Tensor<'_>, out: &mut TensorMut<'_>) -> Result<()> {
        self.record(layer, x, &out.as_tensor())
    }

    /// [`body`](Self::body) with the output in the place of the input.
    pub fn body_in_place(&mut self, layer: i32, x: &mut TensorMut<'_>) -> Result<()> {
        let x = x.as_tensor();
        self.record(layer, &x, &x)
    }

    fn record(&mut self, layer: i32, x: &Tensor<'_>, out: &Tensor<'_>) -> Result<()> {
        self.context.check_places(x, out)?;
        // SAFETY: the memory is there for the call, and later for as long as the graph keeps it.
        call(|| unsafe { sys::ds41_decode_body(self.context.as_ptr(), layer, &x.raw, &out.raw) })?;
        self.keep(x, "x", Access::Read);
        self.keep(out, "out", Access::Write);
        Ok(())
    }

    fn keep(&mut self, tensor: &Tensor<'_>, name: &'static str, access: Access) {
        let Some(memory) = tensor.memory() else { return };
        match self.uses.iter_mut().find(|of| Arc::ptr_eq(&of.memory, memory)) {
            Some(of) if access == Access::Write => of.access = access,
            Some(_) => (),
            None => self.uses.push(Use { memory: memory.clone(), name, access }),
        }
    }

    /// The context, to ask it.
    pub fn context(&self) -> &Context<'w> {
        self.context
    }

    fn end(mut self) -> Result<Graph<'w>> {
        self.is_going_on = false;
        let ended =
            create(sys::ds41_graph_destroy, |graph| unsafe { sys::ds41_graph_end(self.context.as_ptr(), graph) });
        self.context.left_open = self.is_external && ended.is_err();
        Ok(Graph {
            handle: Some(ended?),
            uses: mem::take(&mut self.uses),
            home: self.context.home.clone(),
            _model: self.context.model.clone(),
            not_sync: PhantomData,
        })
    }
}

impl Drop for Capture<'_, '_> {
    /// Of a closure that has failed or panicked.
    fn drop(&mut self) {
        if self.is_going_on {
            self.context.left_open = !discard(self.context) && self.is_external;
        }
    }
}

/// End a capture without a result, and tell whether there was one that could be ended.
pub(crate) fn discard(context: &mut Context<'_>) -> bool {
    let mut graph = ptr::null_mut();
    // SAFETY: the handle is alive and this call's alone; what is made is destroyed at once.
    let ended = unsafe { sys::ds41_graph_end(context.as_ptr(), &mut graph) } == sys::DS41_STATUS_OK;
    if ended {
        unsafe { sys::ds41_graph_destroy(graph) };
    }
    drop(take_panic()); // of a callback that ran meanwhile: there may be one on its way already
    ended
}

impl<'w> DecodeStep<'_, 'w> {
    /// Capture layers into a graph: what the closure does with its argument is recorded and changes no state. The step
    /// may be the first that the graph is launched on; it gives the number of rows.
    ///
    /// ```
    /// # use ds41::*;
    /// # fn run(model: &Model<'_>, n_layers: i32, rows: &[Bf16]) -> Result<()> {
    /// let dim = model.config()?.dim as i64;
    /// let mut context = Context::new(model, ContextOptions::new())?;
    /// let mut sequence = Sequence::new(model)?;
    /// let mut buffer = Buffer::new(model, 2 * dim as u64)?;
    /// let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)])?;
    /// let graph = step.capture(|capture| {
    ///     let mut x = buffer.tensor_mut(0, Dtype::Bf16, &[1, dim])?;
    ///     (0..n_layers).try_for_each(|layer| capture.body_in_place(layer, &mut x))
    /// })?;
    /// for position in 0..100 {
    ///     buffer.upload(0, rows)?;
    ///     context.decode_prep([Span::new(&mut sequence, position, 1)])?.launch(&graph)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What allocates or copies device memory on this thread is refused meanwhile with `WrongOrder`. When the closure
    /// fails or panics, or has recorded nothing, there is no graph, and nothing has changed.
    ///
    /// Errors: `Unsupported` (the backend has no graphs), `WrongOrder` (the step is over or a layer of it has run, a
    /// tap is set, no layer was recorded), `OutOfMemory`, `DeviceError`, and those of the closure.
    pub fn capture(&mut self, record: impl FnOnce(&mut Capture<'_, 'w>) -> Result<()>) -> Result<Graph<'w>> {
        self.capture_with(0, record)
    }

    /// [`capture`](Self::capture) into a graph of the caller's, for the owner of the context's stream: the closure
    /// begins and ends the capture of the stream, with the layers and whatever else there is to enqueue in between. The
    /// owner launches that graph, right after [`launch`](Self::launch), which then only checks and advances the
    /// sequences.
    ///
    /// When the closure returns with the stream still being captured, that is the error, and the context refuses steps
    /// until the stream's capture has ended.
    ///
    /// # Safety
    ///
    /// The caller's graph is launched on the context's stream right after a launch of the one that this returns, and
    /// never else; that one, the step and what borrows its sequences are kept until the work is done.
    pub unsafe fn capture_external(
        &mut self,
        record: impl FnOnce(&mut Capture<'_, 'w>) -> Result<()>,
    ) -> Result<Graph<'w>> {
        self.capture_with(sys::DS41_GRAPH_EXTERNAL, record)
    }

    fn capture_with(
        &mut self,
        flags: u32,
        record: impl FnOnce(&mut Capture<'_, 'w>) -> Result<()>,
    ) -> Result<Graph<'w>> {
        let mut capture = Capture::begin(self.context, flags)?;
        record(&mut capture)?;
        capture.end()
    }

    /// Run a graph's layers on this step, which may have fewer rows than the graph: those of its outputs behind them
    /// become zeros. In one step, graphs and layers that run without one take turns, in ascending order of layers. The
    /// bits are those of the layers one by one.
    ///
    /// Errors: `InvalidShape` (the step has more rows than the graph), `InvalidArgument` (a graph of another context),
    /// `WrongOrder` (as [`body`](Self::body) for any of its layers; a tap is set; the graph's context was dropped; a
    /// selection that it takes from a layer outside of it lies elsewhere since a larger step ran, and it has to be
    /// captured again; another thread uses one of its buffers), `InvalidPosition` (a layer does not stand at the start
    /// of a span), `DeviceError`. No sequence advances then.
    pub fn launch(&mut self, graph: &Graph<'_>) -> Result<()> {
        if !Arc::ptr_eq(&graph.home.0, &self.context.home.0) {
            return Err(if graph.home.lock().is_open {
                Error::new(Status::InvalidArgument, "graph was captured on another context, need one of this step's")
            } else {
                Error::new(
                    Status::WrongOrder,
                    "graph was captured on a context that was dropped, need one of this step's",
                )
            });
        }
        let Some(handle) = &graph.handle else { return Ok(()) }; // not before it is dropped
        let uses = graph.uses.iter();
        let _used = uses.map(|of| of.memory.used(of.name, of.access)).collect::<Result<Vec<_>>>()?;
        // SAFETY: the graph is alive and of this context, which is this call's alone; the sequences are borrowed, and
        // the memory is kept by the graph for the call, which waits.
        call(|| unsafe { sys::ds41_graph_launch(handle.as_ptr()) })?;
        self.context.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Buffer, Config, ContextOptions, Dtype, File, LayerWeights, ModelBuilder, ModelOptions, Sequence, Span,
    };

    #[test]
    #[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
    fn dropped_graphs_wait_for_their_context_and_launches_for_their_memory() {
        std::env::set_var("DS41_PLUGIN_PATH", std::env::var_os("DS41_TEST_PLUGINS").unwrap());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/a_golden_stable.safetensors");
        let file = File::load(path).unwrap();
        let config = Config::from_json(&file.metadata("config").unwrap()).unwrap();
        let mut builder = ModelBuilder::new(&config, &ModelOptions::new().backend("sim")).unwrap();
        builder.set_layer(0, &LayerWeights::from_file(&file, 0).unwrap()).unwrap();
        let model = builder.build();
        let (mut context, mut sequence) =
            (Context::new(&model, ContextOptions::new()).unwrap(), Sequence::new(&model).unwrap());
        let shape = [1, config.dim.into()];
        let buffer = || Buffer::new(&model, 2 * config.dim as u64).unwrap();
        let (mut x, mut out) = (buffer(), buffer());
        x.upload(0, &vec![crate::Bf16::from_f32(1.0); config.dim as usize]).unwrap();
        let home = context.home.clone();
        let n_retired = || home.lock().retired.len();

        let mut step = context.decode_prep([Span::new(&mut sequence, 0, 1)]).unwrap();
        let mut capture = |x: &Buffer<'_>, out: &mut Buffer<'_>| {
            let x = x.tensor(0, Dtype::Bf16, &shape)?;
            step.capture(|capture| capture.body(0, &x, &mut out.tensor_mut(0, Dtype::Bf16, &shape)?))
        };
        let (graph, spare) = (capture(&x, &mut out).unwrap(), capture(&x, &mut out).unwrap());
        let in_place = step.capture(|capture| capture.body_in_place(0, &mut x.tensor_mut(0, Dtype::Bf16, &shape)?));
        let in_place = in_place.unwrap();

        // Whoever reads disturbs launches that write, and the other way round.
        let [of_x, of_out] = &graph.uses[..] else { panic!("{:?}", graph.uses) };
        let disturbed = |result: Result<()>| assert_eq!(result.unwrap_err().status(), Status::WrongOrder);
        let reading = [of_x.memory.used("", Access::Read).unwrap(), of_out.memory.used("", Access::Read).unwrap()];
        disturbed(step.launch(&graph));
        disturbed(step.launch(&in_place));
        drop(reading);
        let writing = of_x.memory.used("", Access::Write).unwrap();
        disturbed(step.launch(&graph));
        drop(writing);
        let reading = of_x.memory.used("", Access::Read).unwrap();
        step.launch(&graph).unwrap();
        drop(reading);

        drop(spare);
        assert_eq!(n_retired(), 1);
        context.synchronize().unwrap();
        assert_eq!(n_retired(), 0);
        drop(in_place);
        assert_eq!(n_retired(), 1);
        drop(context);
        assert_eq!(n_retired(), 0);
        drop(graph);
        assert_eq!(n_retired(), 0);
    }
}
