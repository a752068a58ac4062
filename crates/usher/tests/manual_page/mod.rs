//! Compares a program's `--help` with its manual page, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Options that clap adds to every program. The page lists them once, below OPTIONS.
const COMMON: [&str; 3] = ["--help", "--version", "--json"];

/// Commands (`usher user add`), each with its options.
type Commands = BTreeMap<String, BTreeSet<String>>;

/// Collects the program's commands without subcommands, from `path` down.
fn helped(program: &str, path: &[&str], found: &mut Commands) {
    let output = Command::new(program)
        .args(&path[1..])
        .arg("--help")
        .output()
        .unwrap();
    assert!(output.status.success(), "{path:?} --help: {output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let mut section = "";
    let mut subcommands = Vec::new();
    let mut options = BTreeSet::new();
    for line in help.lines() {
        // Long descriptions have empty lines between them.
        if line.is_empty() {
            continue;
        }
        if !line.starts_with(' ') {
            section = line;
            continue;
        }
        // Continued descriptions are indented further.
        let entry = line.trim_start();
        let indent = line.len() - entry.len();
        match section {
            "Commands:" if indent == 2 => subcommands.extend(entry.split_whitespace().next()),
            "Options:" if indent <= 6 && entry.starts_with('-') => options.extend(
                entry
                    .split_whitespace()
                    .take(2)
                    .find(|word| word.starts_with("--"))
                    .map(str::to_owned),
            ),
            _ => {}
        }
    }
    if subcommands.is_empty() {
        found.insert(path.join(" "), options);
    }
    for subcommand in subcommands.iter().filter(|name| **name != "help") {
        let path: Vec<&str> = path.iter().chain([subcommand]).copied().collect();
        helped(program, &path, found);
    }
}

/// The page's commands: a heading a command (`## usher user add NAME`), below it its options
/// (`**--public-key** *FILE*`). Text below other headings is gathered under "".
fn told(page: &str) -> Commands {
    let mut found = Commands::new();
    let mut command = String::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            command = heading
                .split_whitespace()
                .take_while(|word| word.starts_with(|first: char| first.is_ascii_lowercase()))
                .collect::<Vec<_>>()
                .join(" ");
        } else if line.starts_with("# ") {
            command.clear();
        }
        let options = found.entry(command.clone()).or_default();
        // Only where an option begins its own entry: prose may name others'.
        if line.starts_with("**-") {
            options.extend(
                line.split("**")
                    .filter(|part| part.starts_with("--"))
                    .map(str::to_owned),
            );
        }
    }
    found
}

/// Fails when the program has a command or an option that its page does not tell, or the page
/// tells one that the program does not have.
pub fn compare(program: &str, name: &str, page: &str) {
    let mut helped_commands = Commands::new();
    helped(program, &[name], &mut helped_commands);
    assert!(!helped_commands.is_empty(), "{name} --help has no commands");
    let mut told_commands = told(page);
    let general = told_commands.remove("").unwrap_or_default();

    let mut expected_general = BTreeSet::new();
    for options in helped_commands.values_mut() {
        for common in COMMON {
            if options.remove(common) {
                expected_general.insert(common.to_owned());
            }
        }
    }
    assert_eq!(general, expected_general, "options of every command");
    assert_eq!(told_commands, helped_commands, "page (left), help (right)");
}
