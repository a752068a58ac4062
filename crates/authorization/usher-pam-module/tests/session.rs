//! The module as libpam loads it. tests/lab/tests/mac/login.rs runs it in a virtual machine, with real programs
//! and while modules label processes.

use std::path::PathBuf;
use std::process::Command;

fn module() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libpam_usher.so")
}

/// Opens a session of root with a line of PAM's for the module, closes it, and prints both results.
const SESSION: &str = r#"
import ctypes, ctypes.util, sys
pam = ctypes.CDLL(ctypes.util.find_library("pam"))
class Conversation(ctypes.Structure):
    _fields_ = [("call", ctypes.c_void_p), ("data", ctypes.c_void_p)]
handle, conversation = ctypes.c_void_p(), Conversation()
folder = sys.argv[1].encode()
begun = pam.pam_start_confdir(b"one", b"root", ctypes.byref(conversation), folder, ctypes.byref(handle))
assert begun == 0, begun
opened = pam.pam_open_session(handle, 0)
closed = pam.pam_close_session(handle, 0) if opened == 0 else None
pam.pam_end(handle, 0)
print(opened, closed)
"#;
const SUCCESS: i32 = 0;
const SESSION_ERR: i32 = 14;

fn results(arguments: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("session required {}{arguments}\n", module().display());
    std::fs::write(folder.path().join("one"), line).unwrap();
    let mut python = Command::new("python3");
    let output = python.args(["-c", SESSION]).arg(folder.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_session_is_opened_where_no_module_labels_processes() {
    assert_eq!(results(""), format!("{SUCCESS} {SUCCESS}\n"));
}

#[test]
fn an_argument_refuses_the_session() {
    let expected = format!("{SESSION_ERR} None\n");
    assert_eq!(results(" optional_label"), expected);
}

#[test]
fn libpam_finds_the_entry_points_and_nobody_anything_else() {
    let mut nm = Command::new("nm");
    let nm = nm.args(["--dynamic", "--defined-only", "--format=posix"]);
    let output = nm.arg(module()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> = text
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    names.sort_unstable();
    let expected = [
        "pam_sm_authenticate",
        "pam_sm_close_session",
        "pam_sm_open_session",
        "pam_sm_setcred",
    ];
    assert_eq!(names, expected);
}
