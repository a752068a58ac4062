//! setpmac(8): runs a command with a label.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;
use usher_label::Label;
use usher_system_label::process::set_at_exec;

use crate::error::ToolError;
use crate::output::Output;

/// Run a command with a label.
///
/// The modules in force decide whether the command may have the label.
#[derive(Debug, Parser)]
#[command(name = "setpmac", version)]
pub struct Arguments {
    /// The elements of the label, such as `biba/low`. The command keeps the caller's others.
    label: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Arguments {
    /// Becomes the command, and returns only when it cannot: 126 when the command cannot be executed,
    /// 127 when it is not found, 1 when the label is refused.
    pub fn run(self) -> ExitCode {
        let output = Output {
            command: "setpmac",
            is_json: false,
            is_quiet: false,
        };
        if let Err(error) = self.request() {
            output.complain(&error);
            return ExitCode::FAILURE;
        }
        let mut command = self.command.into_iter();
        let Some(program) = command.next() else {
            return ExitCode::FAILURE;
        };
        // When execve(2) fails, the process ends, and the request for the label with it.
        let error = Command::new(&program).args(command).exec();
        output.complain(&format_args!("{}: {error}", program.display()));
        match error.kind() {
            std::io::ErrorKind::NotFound => ExitCode::from(127),
            _ => ExitCode::from(126),
        }
    }

    fn request(&self) -> Result<(), ToolError> {
        let label: Label = self.label.parse().map_err(ToolError::Label)?;
        set_at_exec(Some(&label)).map_err(|error| ToolError::SetAtExec(label, error))
    }
}
