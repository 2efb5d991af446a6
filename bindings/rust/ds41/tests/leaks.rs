//! What is dropped is given back to the system. In a process of its own, since it looks at the whole process.
#![cfg(target_os = "linux")]

mod support;

use ds41::*;
use std::fs;
use support::{checkpoint, fixture, Case};

/// Bytes of the process in memory.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn n_mappings_of(name: &str) -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.ends_with(name)).count()
}

fn n_threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn nothing_stays_behind() {
    let case = Case::load("c_production_heads");
    let model = case.model();
    let n = case.config.max_seq_len;

    let before = resident();
    for _ in 0..200 {
        let mut buffer = Buffer::new(&model, 4 << 20).unwrap();
        buffer.upload(0, &vec![1u8; 4 << 20]).unwrap();
        let mut sequence = Sequence::new(&model).unwrap();
        sequence.reserve(n.min(1000)).unwrap();
        drop(case.model());
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes have come of buffers of {} bytes", 800 << 20);

    let file = File::load(fixture("a_golden_stable.safetensors")).unwrap();
    assert_eq!(n_mappings_of("a_golden_stable.safetensors"), 1);
    drop(file);
    assert_eq!(n_mappings_of("a_golden_stable.safetensors"), 0);

    let folder = checkpoint("a_golden_stable");
    let mapped = Model::load(folder.path(), LoadOptions::new().map(true)).unwrap();
    let sequence = Sequence::new(&mapped).unwrap();
    drop(mapped);
    assert_eq!(n_mappings_of("model.safetensors"), 1, "the sequence keeps the model");
    drop(sequence);
    assert_eq!(n_mappings_of("model.safetensors"), 0);

    let before = n_threads();
    let mut context = Context::new(&model, ContextOptions::new().n_threads(3)).unwrap();
    case.run_on(&model, &mut context, None);
    assert_eq!(n_threads(), before + 2);
    drop(context);
    assert_eq!(n_threads(), before);
}
