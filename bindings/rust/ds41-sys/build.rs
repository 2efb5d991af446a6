//! Finds libds41: by `DS41_LIB_DIR`, by `DS41_DIR`, or by pkg-config.
use std::env;
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["DS41_LIB_DIR", "DS41_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "DOCS_RS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    let found = if let Some(folder) = env::var_os("DS41_LIB_DIR") {
        at("DS41_LIB_DIR", vec![PathBuf::from(folder)], None)
    } else if let Some(prefix) = env::var_os("DS41_DIR") {
        let prefix = PathBuf::from(prefix);
        let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
        let folders = ["lib".into(), "lib64".into(), format!("lib/{architecture}-linux-gnu")];
        let folders = folders.iter().map(|folder| prefix.join(folder)).collect();
        at("DS41_DIR", folders, Some(prefix.join("include")))
    } else {
        from_pkg_config()
    };
    let (lib_dir, include) = found.unwrap_or_else(|problem| {
        eprintln!("libds41 was not found: {problem}");
        eprintln!("Set DS41_DIR to the prefix it is installed in, DS41_LIB_DIR to the folder of libds41 itself,");
        eprintln!("or PKG_CONFIG_PATH to the folder of ds41.pc (PREFIX/lib/pkgconfig).");
        exit(1)
    });
    println!("cargo:rustc-link-search=native={}", lib_dir.display());
    println!("cargo:rustc-link-lib=dylib=ds41");
    println!("cargo:lib_dir={}", lib_dir.display());
    println!("cargo:rustc-env=DS41_LIB_DIR_FOUND={}", lib_dir.display());
    if let Some(include) = include {
        println!("cargo:include={}", include.display());
        println!("cargo:rustc-env=DS41_INCLUDE={}", include.display());
    }
    if env::var("CARGO_CFG_TARGET_FAMILY").as_deref() == Ok("unix") {
        // For this crate's own tests; dependents decide for themselves.
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib_dir.display());
    }
}

type Found = Result<(PathBuf, Option<PathBuf>), String>;

fn holds_library(folder: &Path) -> bool {
    let names = ["libds41.so", "libds41.dylib", "ds41.lib", "libds41.dll.a"];
    names.iter().any(|name| folder.join(name).exists())
}

fn at(variable: &str, folders: Vec<PathBuf>, include: Option<PathBuf>) -> Found {
    match folders.iter().find(|folder| holds_library(folder)) {
        Some(folder) => Ok((folder.clone(), include.filter(|include| include.exists()))),
        None => {
            let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
            Err(format!("{variable} is set, but there is no shared library in {}", looked.join(", ")))
        }
    }
}

fn from_pkg_config() -> Found {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let name = program.to_string_lossy().into_owned();
    let ask = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).output();
        let output = output.map_err(|error| format!("{name} cannot be run ({error})"))?;
        if !output.status.success() {
            return Err(format!("{name} says: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let package = format!("ds41 >= {}", env!("CARGO_PKG_VERSION"));
    ask(&["--print-errors", "--exists", &package])?;
    let lib_dir = ask(&["--variable=libdir", "ds41"])?;
    let include = ask(&["--variable=includedir", "ds41"])?;
    Ok((lib_dir.into(), Some(PathBuf::from(include))))
}
