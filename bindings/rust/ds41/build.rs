//! Lets tests and examples of this crate find a library outside the loader's folders. Programs decide for themselves.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let unix = std::env::var("CARGO_CFG_TARGET_FAMILY").as_deref() == Ok("unix");
    if let (true, Ok(lib_dir)) = (unix, std::env::var("DEP_DS41_LIB_DIR")) {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib_dir}");
        println!("cargo:rustc-env=DS41_LIB_DIR_FOUND={lib_dir}");
    }
    if let Ok(include) = std::env::var("DEP_DS41_INCLUDE") {
        println!("cargo:rustc-env=DS41_INCLUDE={include}");
    }
}
