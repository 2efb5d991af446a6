//! Raw bindings to libds41: the C API as `include/ds41/ds41.h` declares it, with its documentation. The crate `ds41` is
//! the safe library on top.
//!
//! Everything here is generated from the header. Enums are integers of their own type, so that a number of a newer
//! library is only unknown. How structs lie in memory is asserted at compile time on 64-bit targets, and compared with
//! the C compiler's opinion by a test on all.
//!
//! # Finding the library
//!
//! The build script asks, in this order:
//!
//! - `DS41_LIB_DIR`: the folder that holds `libds41`;
//! - `DS41_DIR`: the prefix of an installation, with `lib` (or `lib64`, or `lib/<architecture>`) and `include` in it;
//! - pkg-config (`PKG_CONFIG` names another program, `PKG_CONFIG_PATH` further folders).
//!
//! Crates that depend directly on this one get the metadata `DEP_DS41_LIB_DIR` and, where known, `DEP_DS41_INCLUDE` in
//! their build scripts. A library outside the loader's folders needs its folder in `LD_LIBRARY_PATH` at run time, or
//! in the program's run path: `println!("cargo:rustc-link-arg=-Wl,-rpath,{lib_dir}")`.
#![no_std]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_int, c_void};
use core::marker::{PhantomData, PhantomPinned};
#[cfg(target_pointer_width = "64")]
use core::mem::{align_of, offset_of, size_of};

#[rustfmt::skip]
mod generated;
pub use generated::*;
