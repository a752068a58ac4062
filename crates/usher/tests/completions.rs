//! `usher completions`, in the shells that read it.
#![forbid(unsafe_code)]

use std::process::{Command, Output};

const USHER: &str = env!("CARGO_BIN_EXE_usher");

fn usher(arguments: &[&str]) -> Output {
    Command::new(USHER).args(arguments).output().unwrap()
}

/// Bash's completions of the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let script = r#"
        source <("$0" completions bash)
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _usher usher "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["-euc", script, USHER])
        .args(words)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let offered = String::from_utf8(output.stdout).unwrap();
    offered.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    assert_eq!(offered(&["usher", "doc"]), ["doctor"]);
    assert_eq!(offered(&["usher", "policy", "wh"]), ["who-can"]);
    assert!(offered(&["usher", "policy", "apply", "--"]).contains(&"--dry-run".to_owned()));
    assert!(!offered(&["usher", "who", "--"]).contains(&"--dry-run".to_owned()));
}

#[test]
fn each_shell_has_its_own_script() {
    for (shell, mark) in [
        ("bash", "complete -F _usher"),
        ("zsh", "#compdef usher"),
        ("fish", "complete -c usher"),
    ] {
        let output = usher(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(mark),
            "{shell}"
        );
    }
}

#[test]
fn another_shell_is_refused_with_those_that_there_are() {
    let output = usher(&["completions", "tcsh"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("bash, zsh, fish"), "{told}");
}
