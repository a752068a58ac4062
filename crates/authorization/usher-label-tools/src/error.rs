//! The errors that end a command.

use std::io;

use usher_label::{Label, LabelError, LabelMistake, MissingElement};
use usher_system_label::file::{FileLabelError, ReadError};
use usher_system_label::process::ProcessLabelError;

use crate::checkpoint::CheckpointError;

/// Why a command ends. Displays as an explanation.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    #[error("-l: {0}; {remedy}", remedy = .0.remedy())]
    Elements(LabelError),
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Label(LabelError),
    #[error(transparent)]
    MissingElement(#[from] MissingElement),
    #[error("{0}: {1}")]
    SetAtExec(Label, ProcessLabelError),
    #[error(transparent)]
    Process(#[from] ProcessLabelError),
    #[error(transparent)]
    File(#[from] FileLabelError),
    /// A specification file, or mac.conf.
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("no specification file: name one with -f or -s")]
    NoSpecification,
    #[error("cannot use the specification files together: {0}")]
    Together(LabelMistake),
    /// The path is relative, or has `.`, `..` or `//` in it, which patterns do not match.
    #[error("{0}: not an absolute path without `.`, `..` and `//`; patterns match such paths only")]
    Detour(String),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// /proc is not mounted, by which the labels of opened files are reached.
    #[error("cannot use /proc/self/fd, by which labels are reached: {0}; mount -t proc proc /proc")]
    NoProc(io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// The path is escaped for a terminal.
    #[error("{0}: {1}")]
    NoLabels(String, FileLabelError),
}
