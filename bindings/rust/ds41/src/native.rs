//! Where calls go through: statuses become errors while the sentence is still this call's, handles get an owner, and
//! panics of callbacks travel around the C frames instead of through them.
use crate::error::{Error, Result, Status};
use ds41_sys as sys;
use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::{c_char, CStr, CString};
use std::mem::{size_of, MaybeUninit};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

thread_local! {
    /// What a callback panicked with during the call in progress. Callbacks run on the thread of their call.
    static PANIC: Cell<Option<Box<dyn Any + Send>>> = const { Cell::new(None) };
    /// Whether a log callback runs on this thread: it must not call back into the library.
    static IN_LOG: Cell<bool> = const { Cell::new(false) };
}

/// Make a call that returns a status. Resumes what a callback has panicked with.
pub(crate) fn call(function: impl FnOnce() -> sys::ds41_status) -> Result<()> {
    refuse_in_log();
    let status = function();
    let result = if status == sys::DS41_STATUS_OK { Ok(()) } else { Err(Error::last(status)) };
    resume_panic();
    result
}

/// Make a call that creates an object, and own it.
pub(crate) fn create<T>(
    destroy: unsafe extern "C" fn(*mut T),
    function: impl FnOnce(*mut *mut T) -> sys::ds41_status,
) -> Result<Handle<T>> {
    refuse_in_log();
    let mut created = ptr::null_mut();
    let status = function(&mut created);
    let result = match NonNull::new(created) {
        Some(pointer) if status == sys::DS41_STATUS_OK => Ok(Handle { pointer, destroy }),
        _ => Err(Error::last(status)),
    };
    resume_panic(); // with the object owned, which is destroyed then
    result
}

fn refuse_in_log() {
    assert!(!IN_LOG.get(), "a log closure must not call back into libds41");
}

fn resume_panic() {
    if let Some(panic) = take_panic() {
        resume_unwind(panic);
    }
}

/// None also at the end of a thread, when there is nothing to look into any more.
pub(crate) fn take_panic() -> Option<Box<dyn Any + Send>> {
    PANIC.try_with(Cell::take).ok().flatten()
}

/// Run a callback's closure. When it panics, the panic waits for the end of the call and the callback returns `instead`.
pub(crate) fn guarded<R>(instead: R, closure: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(closure)) {
        Ok(result) => result,
        Err(panic) => {
            let _ = PANIC.try_with(|cell| cell.set(Some(panic)));
            instead
        }
    }
}

/// As `guarded`, with calls into the library refused meanwhile.
pub(crate) fn guarded_log(closure: impl FnOnce()) {
    let outer = IN_LOG.replace(true);
    guarded((), closure);
    IN_LOG.set(outer);
}

/// Owner of an object of the library.
pub(crate) struct Handle<T> {
    pointer: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Handle<T> {
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if IN_LOG.get() {
            return; // no call is allowed here, and a leak is the harmless end
        }
        // SAFETY: created by the library, destroyed once, here.
        unsafe { (self.destroy)(self.pointer.as_ptr()) }
        drop(take_panic()); // of a callback that ran meanwhile: drop must not panic
    }
}

impl<T> std::fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.pointer)
    }
}

/// Owner of what a callback's user pointer leads to. Unlike a Box it may be moved while the library has the pointer.
pub(crate) struct Pinned<T>(NonNull<T>);

impl<T> Pinned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: from a Box, in `new`, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A struct of the library as its `_init` function leaves it.
pub(crate) fn init<T: Copy>(function: unsafe extern "C" fn(*mut T, usize)) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the function writes no more than the size that it is told, and all members of these structs (numbers,
    // pointers, optional functions) may be zero.
    unsafe {
        function(value.as_mut_ptr(), size_of::<T>());
        value.assume_init()
    }
}

/// A lent string; bytes that are not UTF-8 are replaced. NULL is "".
///
/// # Safety
///
/// NULL, or a string that is valid for `'a`.
pub(crate) unsafe fn text<'a>(string: *const c_char) -> Cow<'a, str> {
    unsafe { optional_text(string) }.unwrap_or_default()
}

/// As `text`, with NULL as None.
///
/// # Safety
///
/// As `text`.
pub(crate) unsafe fn optional_text<'a>(string: *const c_char) -> Option<Cow<'a, str>> {
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy())
}

/// A static string of the library, all of which are ASCII.
///
/// # Safety
///
/// NULL or a static string.
pub(crate) unsafe fn static_text(string: *const c_char) -> &'static str {
    if string.is_null() {
        return "";
    }
    unsafe { CStr::from_ptr(string) }.to_str().unwrap_or("")
}

/// A string for the library, which ends strings with NUL.
pub(crate) fn c_string(what: &str, bytes: impl Into<Vec<u8>>) -> Result<CString> {
    CString::new(bytes).map_err(|error| {
        let at = error.nul_position();
        let shown = String::from_utf8_lossy(&error.into_vec()).into_owned();
        Error::new(Status::InvalidArgument, format!("{what} {shown:?} has a NUL byte at {at}, need a string without"))
    })
}

#[cfg(unix)]
pub(crate) fn c_path(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    c_string("path", path.as_os_str().as_bytes())
}

#[cfg(not(unix))]
pub(crate) fn c_path(path: &Path) -> Result<CString> {
    match path.to_str() {
        Some(path) => c_string("path", path),
        None => Err(Error::new(Status::InvalidArgument, format!("path {path:?} is not Unicode, need a path that is"))),
    }
}

/// A path that the library lends.
///
/// # Safety
///
/// NULL or a valid string.
pub(crate) unsafe fn path(string: *const c_char) -> Option<PathBuf> {
    if string.is_null() {
        return None;
    }
    let string = unsafe { CStr::from_ptr(string) };
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        Some(Path::new(std::ffi::OsStr::from_bytes(string.to_bytes())).to_owned())
    }
    #[cfg(not(unix))]
    Some(PathBuf::from(string.to_string_lossy().into_owned()))
}

pub(crate) fn init_tensor(data: *mut std::ffi::c_void, dtype: i32, shape: &[i64]) -> sys::ds41_tensor {
    let n_dims = i32::try_from(shape.len()).unwrap_or(i32::MAX); // too many are refused
    let mut tensor = MaybeUninit::uninit();
    // SAFETY: fills the struct completely, from at most four of the shape's entries.
    unsafe {
        sys::ds41_tensor_init(tensor.as_mut_ptr(), data, dtype, n_dims, shape.as_ptr());
        tensor.assume_init()
    }
}
