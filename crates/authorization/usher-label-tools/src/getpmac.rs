//! getpmac(8): prints the label of a process.

use std::process::ExitCode;

use clap::Parser;
use serde_json::{Map, json};
use usher_label::Label;
use usher_system_label::process::label_of_process;

use crate::elements::elements;
use crate::error::ToolError;
use crate::output::Output;

/// Print the label of a process.
///
/// One line: the label, or `-` where the process has none of the elements asked for.
#[derive(Debug, Parser)]
#[command(name = "getpmac", version)]
pub struct Arguments {
    /// The elements to print, such as `?biba,mls`. Otherwise those that mac.conf(5) has for processes,
    /// or the whole label where there is no mac.conf.
    #[arg(short = 'l', value_name = "ELEMENTS")]
    elements: Option<String>,
    /// The process. Otherwise the one that runs the command, whose label it has inherited.
    #[arg(short = 'p', value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    process: Option<i32>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Runs the command. Exits 1 when the label could not be printed.
    pub fn run(self) -> ExitCode {
        let output = Output {
            command: "getpmac",
            is_json: self.json,
            is_quiet: false,
        };
        let label = match self.label() {
            Ok(label) => label,
            Err(error) => {
                output.complain(&error);
                return ExitCode::FAILURE;
            }
        };
        let is_labelled = !label.is_empty();
        let text = if is_labelled {
            label.to_string()
        } else {
            "-".to_owned()
        };
        let process = self
            .process
            .unwrap_or_else(|| std::process::id().cast_signed());
        let mut object = Map::new();
        object.insert("pid".to_owned(), json!(process));
        object.insert("label".to_owned(), json!(is_labelled.then_some(&label)));
        match output.print(&text, object) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    }

    fn label(&self) -> Result<Label, ToolError> {
        let elements = elements(self.elements.as_deref(), "process")?;
        let label = label_of_process(self.process)?;
        match elements {
            None => Ok(label),
            Some(elements) => Ok(label.select(&elements)?),
        }
    }
}
