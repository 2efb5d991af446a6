//! A host's own parallel-for.
use crate::native::guarded;
use ds41_sys as sys;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The parts of a step's work: each is to be run once, on any thread
/// ([`ContextOptions::parallel`](crate::ContextOptions::parallel)).
pub struct Tasks<'a> {
    function: unsafe extern "C" fn(*mut c_void, i32),
    argument: *mut c_void,
    taken: &'a [AtomicBool],
}

// SAFETY: tasks may run on any threads at once, and each runs once.
unsafe impl Send for Tasks<'_> {}
unsafe impl Sync for Tasks<'_> {}

impl Tasks<'_> {
    /// Number of tasks, at most that of the context's threads.
    #[allow(clippy::len_without_is_empty)] // there is always one
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Run one.
    ///
    /// # Panics
    ///
    /// When there is no such task, or it has been run.
    pub fn run(&self, index: usize) {
        assert!(index < self.len(), "task {index} of {} does not exist", self.len());
        assert!(self.take(index), "task {index} has been run");
        self.run_taken(index);
    }

    fn take(&self, index: usize) -> bool {
        !self.taken[index].swap(true, Ordering::Relaxed) // who joins the threads orders the work
    }

    fn run_taken(&self, index: usize) {
        // SAFETY: an index in range, once, while the call that brought the tasks is in progress: nobody can keep them.
        unsafe { (self.function)(self.argument, index as i32) }
    }
}

impl fmt::Debug for Tasks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tasks", self.len())
    }
}

type Closure = Box<dyn FnMut(&Tasks<'_>) + Send>;

/// What the user pointer of the callback leads to.
pub(crate) struct Parallel {
    closure: Closure,
    taken: Vec<AtomicBool>, // kept: a step allocates nothing once there are enough
}

impl Parallel {
    pub(crate) fn new(closure: Closure) -> Self {
        Self { closure, taken: Vec::new() }
    }
}

pub(crate) unsafe extern "C" fn on_parallel(n: i32, task: sys::ds41_task_fn, argument: *mut c_void, user: *mut c_void) {
    // SAFETY: the pointer was given with this function and is the context's, which has work to do on this thread.
    let parallel = unsafe { &mut *user.cast::<Parallel>() };
    let (Some(function), Ok(n)) = (task, usize::try_from(n)) else { return };
    parallel.taken.resize_with(n.max(parallel.taken.len()), AtomicBool::default);
    let taken = &parallel.taken[..n];
    taken.iter().for_each(|taken| taken.store(false, Ordering::Relaxed));
    let tasks = Tasks { function, argument, taken };
    guarded((), || (parallel.closure)(&tasks));
    for index in 0..n {
        if tasks.take(index) {
            tasks.run_taken(index); // left out, or lost to a panic: the step needs it
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI32;

    unsafe extern "C" fn count(argument: *mut c_void, index: i32) {
        let counts = unsafe { &*argument.cast::<[AtomicI32; 4]>() };
        counts[index as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn counts_of(closure: impl FnMut(&Tasks<'_>) + Send + 'static) -> [i32; 4] {
        let counts: [AtomicI32; 4] = Default::default();
        let mut parallel = Parallel::new(Box::new(closure));
        for _ in 0..2 {
            let (argument, user) = (std::ptr::from_ref(&counts).cast_mut().cast(), std::ptr::from_mut(&mut parallel));
            unsafe { on_parallel(4, Some(count), argument, user.cast()) };
        }
        counts.map(AtomicI32::into_inner)
    }

    #[test]
    fn each_task_runs_once_whatever_the_closure_does() {
        assert_eq!(counts_of(|_| ()), [2; 4]);
        assert_eq!(counts_of(|tasks| tasks.run(2)), [2; 4]);
        assert_eq!(counts_of(|tasks| (0..tasks.len()).for_each(|index| tasks.run(index))), [2; 4]);
        let panics = |tasks: &Tasks<'_>| {
            tasks.run(3);
            tasks.run(3);
        };
        assert_eq!(counts_of(panics), [2; 4]);
        let _ = crate::native::take_panic();
    }
}
