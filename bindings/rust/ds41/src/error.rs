//! Statuses and sentences.
use crate::native::{static_text, text};
use ds41_sys as sys;
use std::fmt;

/// Result of a call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! statuses {
    ($($(#[doc = $doc:literal])* $name:ident = $raw:ident,)*) => {
        /// What kind of error it is; the numbers are those of the C API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[doc = $doc])* $name,)*
            /// A number that this version of the crate does not know: the library is newer.
            Unknown(i32),
        }

        impl Status {
            pub(crate) fn from_raw(raw: sys::ds41_status) -> Self {
                match raw {
                    $(sys::$raw => Self::$name,)*
                    sys::ds41_status(number) => Self::Unknown(number),
                }
            }

            /// The number in the C API.
            pub fn code(self) -> i32 {
                match self {
                    $(Self::$name => sys::$raw.0,)*
                    Self::Unknown(number) => number,
                }
            }
        }

        /// An error: a variant for each status, with one sentence that tells the function, the argument, what came and
        /// what is accepted.
        ///
        /// ```
        /// use ds41::{Config, Error};
        ///
        /// match Config::from_json("{") {
        ///     Err(Error::InvalidConfig(sentence) | Error::InvalidFile(sentence)) => println!("{sentence}"),
        ///     other => panic!("{other:?}"),
        /// }
        /// ```
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[doc = $doc])* $name(String),)*
            /// A number that this version of the crate does not know: the library is newer.
            Unknown(i32, String),
        }

        impl Error {
            pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
                let message = message.into();
                match status {
                    $(Status::$name => Self::$name(message),)*
                    Status::Unknown(number) => Self::Unknown(number, message),
                }
            }

            /// What kind of error it is.
            pub fn status(&self) -> Status {
                match self {
                    $(Self::$name(_) => Status::$name,)*
                    Self::Unknown(number, _) => Status::Unknown(*number),
                }
            }

            /// The sentence, which is also what `Display` shows.
            pub fn message(&self) -> &str {
                match self {
                    $(Self::$name(message) => message,)*
                    Self::Unknown(_, message) => message,
                }
            }
        }
    };
}

statuses! {
    /// A value out of its range.
    InvalidArgument = DS41_STATUS_INVALID_ARGUMENT,
    /// A struct was not initialised. This crate initialises them all.
    InvalidStruct = DS41_STATUS_INVALID_STRUCT,
    /// A tensor has a dtype that this place does not accept.
    InvalidDtype = DS41_STATUS_INVALID_DTYPE,
    /// A tensor's shape disagrees with its data, the configuration or the step.
    InvalidShape = DS41_STATUS_INVALID_SHAPE,
    /// No such layer in the configuration.
    InvalidLayer = DS41_STATUS_INVALID_LAYER,
    /// A span leaves a gap, repeats tokens, or ends beyond `max_seq_len`.
    InvalidPosition = DS41_STATUS_INVALID_POSITION,
    /// The configuration contradicts itself or leaves its bounds.
    InvalidConfig = DS41_STATUS_INVALID_CONFIG,
    /// Right call, wrong moment: a layer out of order, a source that has not run.
    WrongOrder = DS41_STATUS_WRONG_ORDER,
    /// The layer's weights have not been set.
    MissingWeights = DS41_STATUS_MISSING_WEIGHTS,
    /// Known, but not available in this build, backend or version.
    Unsupported = DS41_STATUS_UNSUPPORTED,
    /// No backend of that name, or it cannot run here.
    NoBackend = DS41_STATUS_NO_BACKEND,
    /// An allocation failed.
    OutOfMemory = DS41_STATUS_OUT_OF_MEMORY,
    /// The GPU, its driver or one of its libraries failed.
    DeviceError = DS41_STATUS_DEVICE_ERROR,
    /// The operating system refused: not found, not readable, ...
    IoError = DS41_STATUS_IO_ERROR,
    /// The bytes are not what the format demands.
    InvalidFile = DS41_STATUS_INVALID_FILE,
    /// The file holds no tensor or metadata entry of that name.
    MissingTensor = DS41_STATUS_MISSING_TENSOR,
    /// A progress closure asked to stop.
    Cancelled = DS41_STATUS_CANCELLED,
    /// A fault of the library.
    Internal = DS41_STATUS_INTERNAL,
}

impl Status {
    /// The constant's name in the C API, such as `DS41_STATUS_INVALID_SHAPE`.
    pub fn name(self) -> &'static str {
        // SAFETY: any number is accepted; the string is static.
        unsafe { static_text(sys::ds41_status_name(sys::ds41_status(self.code()))) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    /// Of the call that has just failed on this thread.
    pub(crate) fn last(status: sys::ds41_status) -> Self {
        // SAFETY: the string is valid until the next call on this thread that fails, and copied here.
        let message = unsafe { text(sys::ds41_last_error()) }.into_owned();
        Self::new(Status::from_raw(status), message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_the_header_has_a_variant() {
        for (raw, name) in sys::ds41_status::ALL {
            if *raw == sys::DS41_STATUS_OK {
                continue;
            }
            let status = Status::from_raw(*raw);
            let error = Error::new(status, "a sentence");
            assert_eq!((error.status(), error.message()), (status, "a sentence"));
            assert!(!matches!(status, Status::Unknown(_)), "{name} has no variant");
            assert_eq!((status.code(), status.name()), (raw.0, *name));
        }
    }

    #[test]
    fn a_number_of_a_newer_library_is_kept() {
        let status = Status::from_raw(sys::ds41_status(77));
        assert_eq!((status, status.code(), status.name()), (Status::Unknown(77), 77, "unknown status"));
        assert_eq!(Error::new(status, "new"), Error::Unknown(77, "new".into()));
    }
}
