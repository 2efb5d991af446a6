// Included by documentation tests too, which have no other module of the tests.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own, removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ds41-rust-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn fixture(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures").join(file)
}

/// A golden case of one file as a checkpoint: its tensors have the release's names, its metadata the configuration.
pub fn checkpoint(case: &str) -> Folder {
    let folder = Folder::new();
    let source = fixture(&format!("{case}.safetensors"));
    std::fs::copy(&source, folder.path().join("model.safetensors")).unwrap();
    let file = ds41::File::load(&source).unwrap();
    std::fs::write(folder.path().join("config.json"), file.metadata("config").unwrap().as_bytes()).unwrap();
    folder
}
