//! What Rust believes of structs, numbers and functions, held against the installed header and library.

use ds41_sys::*;
use std::mem::{align_of, offset_of, size_of};
use std::process::{Command, Stdio};

struct Layout {
    name: &'static str,
    size: usize,
    align: usize,
    offsets: Vec<(&'static str, usize)>,
}

mod table {
    use super::*;
    include!("table.rs");
}

/// The C compiler's complaints about `lines` behind the header; None when it has none.
fn complaints(lines: &str) -> Option<String> {
    use std::io::Write;
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut command = Command::new(&compiler);
    if let Some(include) = option_env!("DS41_INCLUDE") {
        command.arg(format!("-I{include}"));
    }
    let child = command
        .args(["-std=c11", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("the C compiler {compiler} cannot be run: {error}"));
    let source = format!("#include <ds41/ds41.h>\n#include <stddef.h>\n{lines}");
    child.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn structs_lie_as_in_c() {
    let mut lines = String::new();
    for layout in table::layouts() {
        let Layout { name, size, align, offsets } = layout;
        lines += &format!("_Static_assert(sizeof({name}) == {size} && _Alignof({name}) == {align}, \"{name}\");\n");
        for (member, offset) in offsets {
            lines += &format!("_Static_assert(offsetof({name}, {member}) == {offset}, \"{name}.{member}\");\n");
        }
    }
    assert_eq!(complaints(&lines), None);
    let wrong = format!("_Static_assert(sizeof(ds41_tensor) == {}, \"\");", size_of::<ds41_tensor>() + 8);
    assert!(complaints(&wrong).is_some(), "the comparison notices nothing");
}

#[test]
fn numbers_are_those_of_the_header() {
    let mut lines = String::new();
    for (name, value) in table::numbers() {
        lines += &format!("_Static_assert({name} == {value}, \"{name}\");\n");
    }
    for name in table::ENUMS {
        lines += &format!("_Static_assert(sizeof({name}) == {}, \"{name}\");\n", size_of::<i32>());
    }
    assert_eq!(complaints(&lines), None);
}

#[test]
fn every_function_is_in_the_library() {
    let addresses = table::addresses();
    assert!(addresses.len() >= 65 && addresses.iter().all(|address| !address.is_null()));
}

#[test]
fn the_library_is_of_the_version_that_the_bindings_were_made_from() {
    let version = unsafe { std::ffi::CStr::from_ptr(ds41_version()) };
    let (major, minor) = (DS41_VERSION_MAJOR, DS41_VERSION_MINOR);
    assert!(version.to_str().unwrap().starts_with(&format!("{major}.{minor}.")));
    assert!(env!("CARGO_PKG_VERSION").starts_with(&format!("{major}.{minor}.")));
}
