//! `usher policy graph`, with Graphviz's dot and without.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const HOSTS: &str = "host mailhost {\n  address 192.0.2.2;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t\";\n}\n\
     host laptop {\n  address 192.0.2.1;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\";\n}\n";

/// Copies of two hosts' policies, by which so many users may use a service from the other host.
fn copies(folder: &Path, users: usize) {
    let members: Vec<String> = (0..users).map(|user| format!("user{user:03}")).collect();
    let members = members.join(", ");
    let service =
        "service imap { program \"/bin/cat\"; listen 143; style user; users mail; hosts any; }";
    let client = "client mail { users mail; service imap at mailhost port 143; }";
    for (host, block) in [("mailhost", service), ("laptop", client)] {
        let policy = folder.join(host).join("policy.d");
        fs::create_dir_all(&policy).unwrap();
        let text = format!("{HOSTS}users mail {{ member {members}; }}\n{block}\n");
        fs::write(policy.join("mail.policy"), text).unwrap();
    }
}

fn graph(folder: &Path, path: &OsStr, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["policy", "graph", "--hosts", "."])
        .args(options)
        .current_dir(folder)
        .env("PATH", path)
        .output()
        .unwrap()
}

#[test]
fn only_a_picture_needs_the_program_dot() {
    let folder = tempfile::tempdir().unwrap();
    copies(folder.path(), 1);
    let nothing = OsStr::new("/nonexistent");
    let refused = graph(folder.path(), nothing, &["--svg", "graph.svg"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
    let told = String::from_utf8(refused.stderr).unwrap();
    for words in [
        "cannot draw the graph: dot: No such file or directory",
        "install graphviz, or omit --svg",
    ] {
        assert!(told.contains(words), "{told}");
    }
    assert!(!folder.path().join("graph.svg").exists(), "a file is left");
    let printed = graph(folder.path(), nothing, &[]);
    assert!(printed.status.success(), "{printed:?}");
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.starts_with("digraph usher {"), "{text}");
}

#[test]
fn users_with_the_same_rights_are_one_node_of_the_picture() {
    let path = std::env::var_os("PATH").unwrap();
    for users in [5, 500] {
        let folder = tempfile::tempdir().unwrap();
        copies(folder.path(), users);
        let drawn = graph(folder.path(), &path, &["--svg", "graph.svg"]);
        assert!(drawn.status.success(), "{drawn:?}");
        let picture = fs::read_to_string(folder.path().join("graph.svg")).unwrap();
        let count = |class: &str| picture.matches(&format!("class=\"{class}\"")).count();
        // The service, the users who may use it, and an arrow; mailhost around the service.
        assert_eq!(
            ["node", "edge", "cluster"].map(count),
            [2, 1, 1],
            "{picture}"
        );
        for text in [
            "imap",
            "port 143",
            "mailhost",
            "from laptop",
            "user000",
            "user004",
        ] {
            assert!(picture.contains(&format!(">{text}<")), "{text}: {picture}");
        }
        assert!(!picture.contains("user005"), "{picture}");
        assert_eq!(
            picture.contains(">and 495 more<"),
            users == 500,
            "{picture}"
        );
    }
}
