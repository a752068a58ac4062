//! Text written by others does nothing to the reader's terminal.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const HOST: &str = "host laptop {\n  address 192.0.2.1;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\";\n}\n\
     users mail { member alice; }\n\
     service imap { program \"/bin/cat\"; listen 143; style user; users mail; hosts any; }\n";
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k";

/// A folder with a copy of a host, by this name, with this list of alice's keys.
fn copy(name: &str, keys: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join(name);
    fs::create_dir_all(copy.join("policy.d")).unwrap();
    fs::create_dir_all(copy.join("users/alice")).unwrap();
    fs::write(copy.join("policy.d/site.policy"), HOST).unwrap();
    fs::write(copy.join("users/alice/authorized_keys"), keys).unwrap();
    folder
}

fn ask(folder: &Path, question: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .arg("policy")
        .args(question)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// The standard error of a question that fails.
fn refused(folder: &Path) -> String {
    let output = ask(
        folder,
        &["who-can", "imap@laptop", "--host", "laptop=laptop"],
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let plain = |c: char| c == '\n' || usher_policy::is_plain(c);
    assert!(told.chars().all(plain), "{told:?}");
    told
}

#[test]
fn control_characters_in_a_key_lists_line_are_escaped() {
    let honest = copy("laptop", &format!("Jos\u{e9} {KEY}\n"));
    let told = refused(honest.path());
    assert!(told.contains("there is no option `Jos\u{e9}`"), "{told}");
    for (option, shown) in [
        ("\u{1b}]0;OWNED\u{7}", r"`\u{1b}]0;OWNED\u{7}`"),
        ("\u{9b}31m", r"`\u{9b}31m`"),
        ("\u{202e}x", r"`\u{202e}x`"),
        ("expiry-time=\"\u{1b}[2J\"", r"`\u{1b}[2J` is not a time"),
        (
            "cert-authority,principals=\"\u{1b}[2J\"",
            r"`\u{1b}[2J` is not a list",
        ),
        ("\u{1b}[2J=x", r"`\u{1b}[2J` has no value"),
    ] {
        let hostile = copy("laptop", &format!("{option} {KEY}\n"));
        let told = refused(hostile.path());
        assert!(told.contains(shown), "{shown}: {told}");
    }
}

#[test]
fn control_characters_in_a_folders_name_are_escaped() {
    let folder = copy("laptop", KEY);
    fs::create_dir(folder.path().join("laptop/users/a\u{1b}[31mX")).unwrap();
    let told = refused(folder.path());
    assert!(
        told.contains(r"laptop/users/a\u{1b}[31mX: not a user name"),
        "{told}"
    );
}

#[test]
fn an_answer_names_places_with_their_control_characters_escaped() {
    for (name, shown) in [("b\u{fc}ro", "b\u{fc}ro"), ("\u{1b}[31m", r"\u{1b}[31m")] {
        let folder = copy(name, KEY);
        let host = format!("laptop={name}");
        let question = ["explain", "bob@laptop", "imap@laptop", "--host", &host];
        let output = ask(folder.path(), &question);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(!told.contains('\u{1b}'), "{told:?}");
        let place = format!("{shown}/policy.d/site.policy:6:");
        assert!(told.contains(&place), "{place}: {told}");
    }
}

#[test]
fn a_mistake_names_its_file_with_its_control_characters_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let name = "\u{1b}[31m.policy";
    fs::write(
        folder.path().join(name),
        "include \"\u{e9}\";\nusrs u { }\n",
    )
    .unwrap();
    let output = ask(folder.path(), &["check", name]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("\\u{1b}[31m.policy:1:1:\n"), "{told}");
    assert!(told.contains("\u{e9} cannot be included"), "{told}");
    assert!(!told.contains('\u{1b}'), "{told:?}");
}

/// Runs a command whose output, and with `errors_too` standard error, nobody reads.
fn unread(arguments: &[&str], folder: &Path, errors_too: bool) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_usher"));
    command.args(arguments).current_dir(folder);
    command.stdout(writer.try_clone().unwrap());
    if errors_too {
        command.stderr(writer);
    }
    command.output().unwrap()
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure_of_a_command() {
    let folder = copy("laptop", KEY);
    let site = "laptop/policy.d/site.policy";
    fs::write(folder.path().join("wrong.policy"), "users u { membr a; }").unwrap();
    for (arguments, code) in [
        (&["policy", "check", site][..], 0),
        (&["--json", "policy", "check", site], 0),
        (&["policy", "check", "wrong.policy"], 1),
        (&["--json", "policy", "check", "wrong.policy"], 1),
        (
            &[
                "policy",
                "who-can",
                "imap@nowhere",
                "--host",
                "laptop=laptop",
            ],
            1,
        ),
        (&["policy", "check", "missing.policy"], 4),
        (&["policy", "frobnicate"], 2),
        (&["--help"], 0),
    ] {
        for errors_too in [false, true] {
            let output = unread(arguments, folder.path(), errors_too);
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
            assert!(
                !told.contains("cannot write") && !told.contains("pipe"),
                "{told}"
            );
        }
    }
}
