//! What a model has to say.
use crate::native::{guarded_log, text};
use ds41_sys as sys;
use std::ffi::{c_char, c_void};
use std::fmt;

/// How grave a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// Why a call fails: a line for each problem.
    Error,
    /// Something is not as expected, and the call goes on.
    Warning,
    /// What was chosen.
    Info,
    /// Details.
    Debug,
    /// A number that this version of the crate does not know.
    Unknown(i32),
}

impl LogLevel {
    fn from_raw(level: i32) -> Self {
        match sys::ds41_log_level(level) {
            sys::DS41_LOG_ERROR => Self::Error,
            sys::DS41_LOG_WARNING => Self::Warning,
            sys::DS41_LOG_INFO => Self::Info,
            sys::DS41_LOG_DEBUG => Self::Debug,
            sys::ds41_log_level(number) => Self::Unknown(number),
        }
    }
}

/// A closure for messages; what the user pointer of the callback leads to.
pub(crate) struct Log(pub(crate) Closure);

type Closure = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

pub(crate) unsafe extern "C" fn on_log(level: i32, message: *const c_char, user: *mut c_void) {
    guarded_log(|| {
        // SAFETY: the pointer was given with this function and is kept until the model and its children are gone; the
        // closure may be called from several threads. The message is valid for the call.
        let (log, message) = unsafe { (&*user.cast_const().cast::<Log>(), text(message)) };
        (log.0)(LogLevel::from_raw(level), &message);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_the_header_has_a_variant() {
        for (raw, name) in sys::ds41_log_level::ALL {
            assert!(!matches!(LogLevel::from_raw(raw.0), LogLevel::Unknown(_)), "{name} has no variant");
        }
        assert_eq!(LogLevel::from_raw(77), LogLevel::Unknown(77));
    }
}
