//! The document that teaches how to write a module leads to one.

use std::fs;
use std::path::Path;

use serde_json::json;
use usher_lab::{Lab, Role};

use super::{Outcome, WORK, answer, commands, executes, host, may_load, root};

/// The files and commands of the document, in its order.
enum Step {
    File(String, String),
    Commands(String),
    /// What the commands before it print.
    Output(String),
}

/// The steps of docs/writing-a-module.md.
fn document() -> Result<Vec<Step>, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(root().join("docs/writing-a-module.md"))?;
    let mut steps = Vec::new();
    let mut rest = text.as_str();
    while let Some((before, block)) = rest.split_once("\n```") {
        let (block, after) = block.split_once("\n```\n").ok_or("a block has no end")?;
        let (kind, body) = block.split_once('\n').ok_or("a block has no text")?;
        let body = format!("{body}\n");
        steps.push(match kind {
            "c" => {
                // The last words before it: `NAME`:
                let name = before.trim_end().strip_suffix("`:");
                let name = name.and_then(|name| name.rsplit('`').next());
                Step::File(name.ok_or("a file has no name")?.to_owned(), body)
            }
            "sh" => Step::Commands(body),
            "text" => Step::Output(body),
            other => return Err(format!("a block of {other}").into()),
        });
        rest = after;
    }
    Ok(steps)
}

#[test]
fn the_commands_of_the_document_lead_to_a_module_in_force() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    let is_loaded_here = may_load(&host)?;
    let _labeller = host.start_daemon(Role::Labeller)?;
    for (program, owner) in [("/srv/own", "alice"), ("/srv/roots", "root")] {
        host.write_program(program, "#!/bin/true\n")?;
        host.run(["chown", owner, program])?;
    }
    let mut printed = String::new();
    let (mut files, mut lines) = (0, 0);
    for step in document()? {
        match step {
            Step::File(name, text) => {
                if name.starts_with("trusted_path") {
                    lines = lines.max(text.lines().count());
                }
                let example = fs::read_to_string(root().join("examples/module").join(&name))?;
                assert_eq!(text, example, "examples/module/{name}");
                host.write(format!("{WORK}/{name}"), text)?;
                files += 1;
            }
            Step::Commands(text) if text.starts_with("usher mac") && !is_loaded_here => {
                printed.clear();
            }
            Step::Commands(text) => {
                let folder = if text.starts_with("make ") {
                    root()
                } else {
                    WORK.into()
                };
                printed = commands(&host, &folder, &text)?;
                if text.starts_with("usher mac load") {
                    assert!(!executes(&host, "/srv/own")?);
                    assert!(executes(&host, "/srv/roots")?);
                }
            }
            Step::Output(text) if is_loaded_here => assert_eq!(printed, text),
            Step::Output(_) => {}
        }
    }
    assert_eq!((files, lines <= 32), (4, true), "{lines} lines");
    // The test of the module can fail.
    let broken = "sed 's/022/02/' trusted_path.bpf.c >broken.bpf.c\n\
                  sed 's/trusted_path.bpf.c/broken.bpf.c/' trusted_path_test.c >broken_test.c\n\
                  cc $(pkg-config --cflags usher-module) -o broken_test broken_test.c\n\
                  if ./broken_test; then exit 1; fi\n";
    commands(&host, Path::new(WORK), broken)?;
    // Not in force any more, and seen as a module that can be.
    assert!(executes(&host, "/srv/own")?);
    let listed = answer(&host, &["list"])?;
    assert_eq!(listed["modules"], json!([]));
    let available = listed["available"].as_array().ok_or("no list")?;
    assert!(available.contains(&json!("trusted_path")), "{listed}");
    Ok(())
}
