//! `usher policy graph`: a picture of users and the services that they may use.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::hosts::Loaded;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the graph, or lets dot(1) draw it.
pub fn run(output: &Output, loaded: &Loaded, svg: Option<&Path>) -> Result<u8, Failure> {
    let graph = usher_analysis::graph(&loaded.network);
    match svg {
        // JSON of `usher policy graph`:
        //   dot: The graph, in Graphviz's DOT language.
        None => output.print(&json!({ "dot": graph }), || graph.clone()),
        Some(file) => {
            draw(&graph, file)?;
            // JSON of `usher policy graph --svg`:
            //   svg: The file that was written.
            output.print(&json!({ "svg": file }), || {
                format!("wrote {}", file.display())
            });
        }
    }
    Ok(0)
}

fn draw(graph: &str, file: &Path) -> Result<(), Failure> {
    let failed = |what: String| Failure::Refused(format!("cannot draw the graph: {what}"));
    // dot makes the file, so that there is none without dot.
    let mut dot = Command::new("dot")
        .arg("-Tsvg")
        .arg("-o")
        .arg(file)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("dot: {error}; install graphviz, or omit --svg")))?;
    let written = match dot.stdin.take() {
        Some(mut input) => input.write_all(graph.as_bytes()),
        None => Ok(()),
    };
    let status = dot
        .wait()
        .map_err(|error| failed(format!("dot: {error}")))?;
    if !status.success() {
        return Err(failed(format!("dot ended with {status}")));
    }
    written.map_err(|error| failed(format!("dot does not read the graph: {error}")))
}
