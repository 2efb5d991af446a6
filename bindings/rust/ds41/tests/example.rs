//! The examples run; those that C has too print what they print there, line by line.
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::{checkpoint, compile_c, fixture, Folder};

/// Beside the tests' folder, where `cargo test` builds them, unless it is told which tests to build.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not there: cargo build --examples", path.display());
    path
}

fn output(program: &Path, argument: &Path) -> String {
    let output = Command::new(program).arg(argument).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn quickstart_prints_what_it_prints_in_c() {
    let folder = Folder::new();
    let program = folder.path().join("quickstart");
    compile_c(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/c/quickstart.c"), &program);
    let file = fixture("a_golden_stable.safetensors");
    let (in_c, in_rust) = (output(&program, &file), output(&example("quickstart"), &file));
    assert_eq!(in_c.lines().count(), 6);
    let numbers = |line: &str| -> Vec<f32> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    for (c, rust) in in_c.lines().zip(in_rust.lines()) {
        // C prints six digits of a number, Rust as many as tell it from its neighbours.
        let words = |line: &str| line.split(" row").next().unwrap().to_owned();
        assert_eq!(words(c), words(rust));
        let (c, rust) = (numbers(c), numbers(rust));
        assert_eq!(c.len(), rust.len());
        assert!(c.iter().zip(&rust).all(|(a, b)| (a - b).abs() <= 1e-5 * a.abs()), "{c:?}, {rust:?}");
    }
    assert_eq!(in_c.lines().count(), in_rust.lines().count());
}

#[test]
fn quickstart_says_what_is_wrong() {
    let output = Command::new(example("quickstart")).arg("/nowhere/x.safetensors").output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.starts_with("quickstart failed: ds41_file_load: ") && text.contains("/nowhere/x.safetensors"),
        "{text}"
    );
}

#[test]
fn load_runs_a_checkpoint() {
    let folder = checkpoint("a_golden_stable");
    let text = output(&example("load"), folder.path());
    assert!(text.starts_with("6 layers, 13 tokens, cache of "), "{text}");
    let values: Vec<f32> = text.split(['[', ']', ',']).filter_map(|word| word.trim().parse().ok()).collect();
    assert!(values.len() == 4 && values.iter().all(|value| value.is_finite() && *value != 0.5), "{text}");
}

/// What the C program of that name prints, and what the one in Rust does.
fn captured(backend: &str) -> (String, String) {
    let folder = checkpoint("a_golden_stable");
    let program = folder.path().join("captured");
    compile_c(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/c/captured.c"), &program);
    let output = |program: &Path| {
        let mut command = Command::new(program);
        if let Some(plugins) = std::env::var_os("DS41_TEST_PLUGINS") {
            command.env("DS41_PLUGIN_PATH", plugins);
        }
        let output = command.arg(folder.path().join("model.safetensors")).arg(backend).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    (output(&program), output(&example("captured")))
}

#[test]
fn captured_prints_what_it_prints_in_c() {
    let (in_c, in_rust) = captured("cpu");
    assert!(in_rust.starts_with("backend cpu, layer by layer: 8 tokens of 2 sequences, last value "), "{in_rust}");
    assert_eq!(in_c, in_rust);
}

#[test]
#[ignore = "needs the simulated device: DS41_TEST_PLUGINS"]
fn captured_captures_where_there_are_graphs() {
    let (in_c, in_rust) = captured("sim");
    assert!(in_rust.starts_with("backend sim, captured: 8 tokens of 2 sequences, last value "), "{in_rust}");
    assert_eq!(in_c, in_rust);
}
