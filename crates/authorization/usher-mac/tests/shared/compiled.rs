//! Modules compiled for user space: a program that answers questions.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Compiles a program of this folder, which includes a module's file.
pub fn compile(source: &str) -> PathBuf {
    let bpf = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../bpf");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    let name = format!("mac_{source}").replace(['.', '/'], "_");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiled = Command::new("clang")
        .args(["-O1", "-g", "-Wall", "-Werror"])
        .args(["-I", &format!("{bpf}/include"), "-I", &format!("{bpf}/mac")])
        .args(["-I", &format!("{folder}/shared")])
        .args([&format!("{folder}/{source}"), "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(compiled.success());
    program
}

/// Runs a program on questions, and returns its answers.
pub fn run(program: &PathBuf, input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut into = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || into.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    output.stdout
}
