//! setfmac(8): sets one label on files.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use usher_label::Label;
use usher_system_label::file::{Change, FileLabelError, LabelledFile};

use crate::output::{Output, of_path};
use crate::walk::{Manner, Onward, handle_of, require_proc, walk};

/// Set the label of files.
///
/// The elements of LABEL replace those of the same name; a file's other elements stay. Takes
/// CAP_SYS_ADMIN.
#[derive(Debug, Parser)]
#[command(name = "setfmac", version, disable_help_flag = true)]
pub struct Arguments {
    /// Also label the files below directories. A symbolic link found there is labelled itself.
    #[arg(short = 'R')]
    recursive: bool,
    /// Label a symbolic link itself, not the file to which it points.
    #[arg(short = 'h')]
    of_link: bool,
    /// Print no warnings.
    #[arg(short = 'q')]
    quiet: bool,
    /// Replace the whole label, also where the file's attribute is not a label.
    #[arg(long)]
    replace: bool,
    /// Print a JSON object for each file whose label changes or cannot be set.
    #[arg(long)]
    json: bool,
    /// Print this help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The label, such as `biba/high,mls/low`.
    label: String,
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

impl Arguments {
    /// Runs the command. Exits 1 when a label could not be set.
    pub fn run(self) -> ExitCode {
        let output = Output {
            command: "setfmac",
            is_json: self.json,
            is_quiet: self.quiet,
        };
        let label: Label = match self.label.parse() {
            Ok(label) => label,
            Err(error) => {
                output.complain(&format!("{error}; {}", error.remedy()));
                return ExitCode::FAILURE;
            }
        };
        if let Err((element, mistake)) = label.check_values() {
            output.complain(&FileLabelError::Value { element, mistake });
            return ExitCode::FAILURE;
        }
        if let Err(error) = require_proc() {
            output.complain(&error);
            return ExitCode::FAILURE;
        }
        let mut failures = 0_u64;
        for path in &self.files {
            let onward = if self.recursive {
                self.below(path, &label, &output, &mut failures)
            } else {
                let set = handle_of(path, !self.of_link)
                    .map_err(FileLabelError::Kernel)
                    .and_then(|handle| self.set(LabelledFile::Handle(handle.as_fd()), &label));
                note_failure(
                    path.as_os_str().as_bytes(),
                    &set,
                    &label,
                    &output,
                    &mut failures,
                )
            };
            if onward == Onward::Stop {
                return ExitCode::FAILURE;
            }
        }
        match failures {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    fn below(&self, root: &Path, label: &Label, output: &Output, failures: &mut u64) -> Onward {
        let manner = Manner {
            follow_root: !self.of_link,
            ..Manner::default()
        };
        walk(root, &manner, &mut |step| {
            let (path, set) = match step {
                Ok(file) => (
                    file.path,
                    self.set(LabelledFile::Handle(file.handle), label),
                ),
                Err((path, errno)) => (path, Err(FileLabelError::Kernel(errno))),
            };
            let onward = note_failure(path, &set, label, output, failures);
            match (onward, set) {
                (Onward::Stop, _) => Onward::Stop,
                (_, Err(FileLabelError::NotSupported)) => Onward::Past,
                _ => Onward::Into,
            }
        })
    }

    fn set(&self, file: LabelledFile<'_>, label: &Label) -> Result<Change, FileLabelError> {
        if self.replace {
            file.replace(label)
        } else {
            file.set(label)
        }
    }
}

fn note_failure(
    path: &[u8],
    set: &Result<Change, FileLabelError>,
    label: &Label,
    output: &Output,
    failures: &mut u64,
) -> Onward {
    let printed = match set {
        Ok(Change::Unchanged) => Ok(()),
        Ok(_) if !output.is_json => Ok(()),
        Ok(change) => {
            let mut object = of_path(path);
            object.insert("set".to_owned(), json!(label));
            if let Change::Changed(before) = change {
                object.insert("before".to_owned(), json!(before));
            }
            output.print("", object)
        }
        Err(error) => {
            *failures += 1;
            output.warn(path, &error.to_string())
        }
    };
    match printed {
        Ok(()) => Onward::Past,
        Err(_) => Onward::Stop,
    }
}
