//! How the build script finds the library, and what it says when it does not: the script itself, run by hand.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Script {
    folder: PathBuf,
}

impl Script {
    fn compile(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ds41-sys-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
        let mut command = Command::new(compiler);
        command.args(["--edition", "2021", "-o"]).arg(folder.join("script")).arg(source);
        assert!(command.status().unwrap().success());
        Self { folder }
    }

    /// Its outputs, with these variables alone; an error's with Err.
    fn run(&self, variables: &[(&str, &Path)]) -> Result<String, String> {
        let mut command = Command::new(self.folder.join("script"));
        for name in ["DS41_DIR", "DS41_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "DOCS_RS"] {
            command.env_remove(name);
        }
        command.env("CARGO_CFG_TARGET_ARCH", "x86_64").env("CARGO_CFG_TARGET_FAMILY", "unix");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    /// A prefix with a library in one of its folders.
    fn prefix(&self, lib: &str) -> PathBuf {
        let prefix = self.folder.join(lib.replace('/', "-"));
        fs::create_dir_all(prefix.join(lib)).unwrap();
        fs::create_dir_all(prefix.join("include")).unwrap();
        fs::write(prefix.join(lib).join("libds41.so"), "").unwrap();
        prefix
    }

    fn program(&self, name: &str, lines: &str) -> PathBuf {
        let path = self.folder.join(name);
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn by_the_prefix_or_the_folder() {
    let script = Script::compile("prefix");
    for lib in ["lib", "lib64", "lib/x86_64-linux-gnu"] {
        let prefix = script.prefix(lib);
        let lib_dir = prefix.join(lib);
        let searches = format!("cargo:rustc-link-search=native={}\n", lib_dir.display());
        let by_prefix = script.run(&[("DS41_DIR", &prefix)]).unwrap();
        assert!(by_prefix.contains(&searches), "{by_prefix}");
        assert!(by_prefix.contains("cargo:rustc-link-lib=dylib=ds41\n"), "{by_prefix}");
        assert!(by_prefix.contains(&format!("cargo:include={}\n", prefix.join("include").display())), "{by_prefix}");
        let by_folder = script.run(&[("DS41_LIB_DIR", &lib_dir), ("DS41_DIR", Path::new("/nowhere"))]).unwrap();
        assert!(by_folder.contains(&searches), "{by_folder}");
    }
}

#[test]
fn by_pkg_config() {
    let script = Script::compile("pkg-config");
    let lines =
        "echo \"$@\" >>$0.log; case $1 in --variable=libdir) echo /some/lib;; --variable=*) echo /some/inc;; esac";
    let program = script.program("pkg-config", lines);
    let found = script.run(&[("PKG_CONFIG", &program)]).unwrap();
    assert!(found.contains("cargo:rustc-link-search=native=/some/lib\n"), "{found}");
    assert!(found.contains("cargo:include=/some/inc\n"), "{found}");
    let asked = fs::read_to_string(script.folder.join("pkg-config.log")).unwrap();
    assert!(asked.contains(&format!("--exists ds41 >= {}\n", env!("CARGO_PKG_VERSION"))), "{asked}");
}

#[test]
fn what_it_says_when_there_is_none() {
    let script = Script::compile("none");
    let empty = script.folder.join("empty");
    let wrong = script.run(&[("DS41_DIR", &empty)]).unwrap_err();
    assert!(wrong.contains("DS41_DIR is set, but there is no shared library in"), "{wrong}");
    assert!(wrong.contains("empty/lib64"), "{wrong}");
    let wrong = script.run(&[("DS41_LIB_DIR", &empty)]).unwrap_err();
    assert!(wrong.contains("DS41_LIB_DIR is set, but there is no shared library in"), "{wrong}");
    let absent = script.run(&[("PKG_CONFIG", &script.folder.join("no-such-program"))]).unwrap_err();
    assert!(absent.contains("no-such-program cannot be run"), "{absent}");
    let program = script.program("unknowing", "echo 'Package ds41 was not found' >&2; exit 1");
    let unknown = script.run(&[("PKG_CONFIG", &program)]).unwrap_err();
    assert!(unknown.contains("says: Package ds41 was not found"), "{unknown}");
    for text in [wrong, absent, unknown] {
        assert!(text.contains("Set DS41_DIR to the prefix"), "{text}");
    }
}
