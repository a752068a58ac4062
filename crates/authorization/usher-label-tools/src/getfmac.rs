//! getfmac(8): prints the labels of files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use usher_label::{ElementList, Label};
use usher_system_label::file::LabelledFile;

use crate::elements::elements;
use crate::error::ToolError;
use crate::output::{Output, of_path, shown};

/// Print the labels of files.
///
/// A line for each file: its path and its label, or `-` where it has none of the elements asked for.
#[derive(Debug, Parser)]
#[command(name = "getfmac", version, disable_help_flag = true)]
pub struct Arguments {
    /// Print the label of a symbolic link itself, not of the file to which it points.
    #[arg(short = 'h')]
    of_link: bool,
    /// The elements to print, such as `?biba,mls`. Otherwise those that mac.conf(5) has for files, or
    /// the whole label where there is no mac.conf.
    #[arg(short = 'l', value_name = "ELEMENTS")]
    elements: Option<String>,
    /// Print a JSON object a line.
    #[arg(long)]
    json: bool,
    /// Print this help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Arguments {
    /// Runs the command. Exits 1 when a label could not be printed.
    pub fn run(self) -> ExitCode {
        let output = Output {
            command: "getfmac",
            is_json: self.json,
            is_quiet: false,
        };
        let elements = match elements(self.elements.as_deref(), "file") {
            Ok(elements) => elements,
            Err(error) => {
                output.complain(&error);
                return ExitCode::FAILURE;
            }
        };
        let mut is_whole = true;
        for path in &self.files {
            let bytes = path.as_os_str().as_bytes();
            let printed = match self.label(path, elements.as_ref()) {
                Ok(label) => {
                    let text = if label.is_empty() {
                        "-".to_owned()
                    } else {
                        label.to_string()
                    };
                    let mut object = of_path(bytes);
                    object.insert(
                        "label".to_owned(),
                        json!((!label.is_empty()).then_some(&label)),
                    );
                    output.print(&format!("{}: {text}", shown(bytes)), object)
                }
                Err(error) => {
                    is_whole = false;
                    output.warn(bytes, &error.to_string())
                }
            };
            if printed.is_err() {
                return ExitCode::FAILURE;
            }
        }
        if is_whole {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn label(&self, path: &Path, elements: Option<&ElementList>) -> Result<Label, ToolError> {
        let file = if self.of_link {
            LabelledFile::Link(path)
        } else {
            LabelledFile::Path(path)
        };
        let label = file.label()?.unwrap_or_default();
        match elements {
            None => Ok(label),
            Some(elements) => Ok(label.select(elements)?),
        }
    }
}
