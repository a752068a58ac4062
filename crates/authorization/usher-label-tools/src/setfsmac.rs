//! setfsmac(8): labels trees by specification files.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use usher_label::{Flavour, Label, Match, Specification, SpecificationSet};
use usher_system_label::file::{Change, FileLabelError, LabelledFile, first_of, read_source};

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::error::ToolError;
use crate::output::{Output, hexadecimal, of_path, shown};
use crate::walk::{Manner, Onward, Step, Visited, require_proc, walk};

/// Limit of files between two writes of the checkpoint.
const FILES_OF_A_CHECKPOINT: u64 = 4096;
/// The time between two reports of progress.
const PROGRESS: Duration = Duration::from_secs(1);
/// Limit of files with several names whose labels are remembered.
const REMEMBERED: usize = 65_536;

/// Label trees by specification files.
///
/// In each file the last line that matches a path counts; labels from several files are merged.
/// Takes CAP_SYS_ADMIN.
#[derive(Debug, Parser)]
#[command(name = "setfsmac", version, disable_help_flag = true)]
pub struct Arguments {
    /// A specification file: lines `PATTERN [KIND] LABEL`.
    #[arg(short = 'f', value_name = "FILE")]
    labels: Vec<PathBuf>,
    /// A specification file in SELinux's form: the contexts become values of the element `sebsd`.
    #[arg(short = 's', value_name = "FILE")]
    contexts: Vec<PathBuf>,
    /// Stop at a file system that keeps no labels, instead of passing it.
    #[arg(short = 'e')]
    strict: bool,
    /// Permitted for scripts of FreeBSD: a symbolic link is always labelled itself.
    #[arg(short = 'h')]
    _of_link: bool,
    /// Print no warnings and no summary.
    #[arg(short = 'q')]
    quiet: bool,
    /// Leave files alone that have a label, whatever it is, and print the others.
    #[arg(short = 'u', long)]
    unlabelled: bool,
    /// Print each file with the lines that decide for it.
    #[arg(short = 'v')]
    verbose: bool,
    /// Do not enter other file systems.
    #[arg(short = 'x')]
    one_file_system: bool,
    /// Set nothing; report what would be set.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Note in this file how far the run has come. If the file is there, go on from where it says. It is
    /// removed when the run is whole.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    checkpoint: Option<PathBuf>,
    /// Print progress at once and then each second, also where standard error is not a terminal.
    #[arg(long)]
    progress: bool,
    /// Print JSON objects, one a line; the last one is the summary.
    #[arg(long)]
    json: bool,
    /// Print this help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The trees: absolute paths.
    #[arg(required = true)]
    trees: Vec<PathBuf>,
}

/// How many files a run has met.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counters {
    /// All.
    files: u64,
    /// Had no label and got one.
    first: u64,
    /// Got another label.
    changed: u64,
    /// Had the right one.
    unchanged: u64,
    /// No specification matches, and they have a label.
    unmatched: u64,
    /// No specification matches, and they have no label.
    unlabelled: u64,
    /// Places that keep no labels.
    passed: u64,
    /// Labels that could not be set, and places that could not be reached.
    failed: u64,
}

impl Counters {
    fn object(&self) -> Map<String, Value> {
        match json!(self) {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    }
}

impl std::fmt::Display for Counters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            files,
            first,
            changed,
            unchanged,
            unmatched,
            unlabelled,
            passed,
            failed,
        } = self;
        write!(
            formatter,
            "{files} files: {first} labelled for the first time, {changed} changed, {unchanged} \
             unchanged, {unmatched} without a specification, {unlabelled} of no label; {passed} places \
             keep no labels, {failed} failed"
        )
    }
}

/// The state of a run.
struct Run<'a> {
    arguments: &'a Arguments,
    set: &'a SpecificationSet,
    output: Output,
    counters: Counters,
    checkpoint: Option<Checkpoint>,
    /// Labels of files with several names, by file system and inode.
    named: HashMap<(u64, u64), Label>,
    /// When progress was printed last; `None` has it printed at once.
    printed: Option<Instant>,
    shows_progress: bool,
    /// The tree and the file that were done last.
    last: Option<(usize, Vec<u8>)>,
    /// Why the run stops.
    stopped: Option<ToolError>,
}

impl Arguments {
    /// Runs the command. Exits 1 when a file could not be labelled, or the run was not whole.
    pub fn run(self) -> ExitCode {
        let output = Output {
            command: "setfsmac",
            is_json: self.json,
            is_quiet: self.quiet,
        };
        match self.label_trees(output) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                output.complain(&error);
                ExitCode::FAILURE
            }
        }
    }

    fn label_trees(&self, output: Output) -> Result<bool, ToolError> {
        for tree in &self.trees {
            check_path(tree)?;
        }
        let (set, run) = self.specifications()?;
        require_proc()?;
        let (checkpoint, position) = match &self.checkpoint {
            None => (None, None),
            Some(file) => {
                let opened = Checkpoint::open(file, run)?;
                (Some(opened.0), opened.1)
            }
        };
        let mut run = Run {
            arguments: self,
            set: &set,
            output,
            counters: Counters::default(),
            checkpoint,
            named: HashMap::new(),
            printed: (!self.progress).then(Instant::now),
            shows_progress: self.progress || (!self.quiet && io::stderr().is_terminal()),
            last: None,
            stopped: None,
        };
        for (index, tree) in self.trees.iter().enumerate() {
            let behind = match &position {
                Some(position) if index < position.root => continue,
                Some(position) if index == position.root => Some(position.path.clone()),
                _ => None,
            };
            let manner = Manner {
                one_file_system: self.one_file_system,
                follow_root: false,
                behind,
            };
            walk(tree, &manner, &mut |step| run.step(index, step));
            if run.stopped.is_some() {
                break;
            }
        }
        run.finish()
    }

    /// The specifications, and what identifies a run with them.
    fn specifications(&self) -> Result<(SpecificationSet, String), ToolError> {
        let mut digest = Sha256::new();
        let mut files = Vec::new();
        let labels = self.labels.iter().map(|path| (path, Flavour::Labels));
        let contexts = self.contexts.iter().map(|path| (path, Flavour::Contexts));
        for (path, flavour) in labels.chain(contexts) {
            let source = read_source(path)?;
            for part in [&[flavour as u8][..], source.text.as_bytes()] {
                add_to_digest(&mut digest, part);
            }
            let file = Specification::parse(source, flavour);
            files.push(file.map_err(first_of)?);
        }
        if files.is_empty() {
            return Err(ToolError::NoSpecification);
        }
        add_to_digest(
            &mut digest,
            &[u8::from(self.one_file_system), u8::from(self.unlabelled)],
        );
        for tree in &self.trees {
            add_to_digest(&mut digest, tree.as_os_str().as_bytes());
        }
        let set = SpecificationSet::new(files).map_err(ToolError::Together)?;
        Ok((set, hexadecimal(&digest.finalize())))
    }
}

/// Adds a part of known length, so that no two lists of parts have one digest.
fn add_to_digest(digest: &mut Sha256, part: &[u8]) {
    digest.update((part.len() as u64).to_be_bytes());
    digest.update(part);
}

/// Refuses a path that is relative or has detours: patterns are for absolute paths without detours.
fn check_path(tree: &Path) -> Result<(), ToolError> {
    let is_plain = tree.is_absolute()
        && tree
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    // `components` leaves out `.` and repeated slashes, which patterns would meet.
    let text = tree.as_os_str().as_bytes();
    let has_detour = text.windows(2).any(|two| two == b"//")
        || text.windows(3).any(|three| three == b"/./")
        || text.ends_with(b"/.");
    if is_plain && !has_detour {
        Ok(())
    } else {
        Err(ToolError::Detour(shown(text)))
    }
}

impl Run<'_> {
    fn step(&mut self, root: usize, step: Step<'_>) -> Onward {
        let path = match &step {
            Ok(file) => file.path.to_vec(),
            Err((path, _)) => path.to_vec(),
        };
        self.counters.files += 1;
        let onward = match self.label(step) {
            Ok(onward) => onward,
            Err(error) => {
                self.stopped = Some(error.into());
                Onward::Stop
            }
        };
        if onward == Onward::Stop {
            return Onward::Stop;
        }
        self.show_progress(&path);
        self.last = Some((root, path));
        if self.counters.files.is_multiple_of(FILES_OF_A_CHECKPOINT)
            && let Err(error) = self.write_checkpoint()
        {
            self.stopped = Some(error.into());
            return Onward::Stop;
        }
        onward
    }

    fn write_checkpoint(&self) -> Result<(), CheckpointError> {
        match (&self.checkpoint, &self.last) {
            (Some(checkpoint), Some((root, path))) => checkpoint.write(*root, path),
            _ => Ok(()),
        }
    }

    fn show_progress(&mut self, path: &[u8]) {
        let is_early = self
            .printed
            .is_some_and(|printed| printed.elapsed() < PROGRESS);
        if !self.shows_progress || is_early {
            return;
        }
        self.printed = Some(Instant::now());
        self.output
            .complain(&format!("{}; at {}", self.counters, shown(path)));
    }

    fn label(&mut self, step: Step<'_>) -> io::Result<Onward> {
        let file = match step {
            Ok(file) => file,
            Err((path, errno)) => {
                self.counters.failed += 1;
                self.output.warn(path, &errno.to_string())?;
                return Ok(Onward::Past);
            }
        };
        let decided = self.set.decide(file.path, file.kind);
        let target = LabelledFile::Handle(file.handle);
        let Some(label) = decided.label.as_ref() else {
            match target.label() {
                Ok(Some(_)) => self.counters.unmatched += 1,
                Ok(None) => {
                    self.counters.unlabelled += 1;
                    if self.arguments.unlabelled {
                        self.describe_unmatched(file.path)?;
                    }
                }
                Err(error) => return self.refused(&file, error),
            }
            return Ok(Onward::Into);
        };
        if self.arguments.unlabelled {
            match target.has_attribute() {
                Ok(true) => {
                    self.counters.unchanged += 1;
                    return Ok(Onward::Into);
                }
                Ok(false) => {}
                Err(error) => return self.refused(&file, error),
            }
        }
        if let Some(text) = self.contradiction(&file, label) {
            self.counters.failed += 1;
            self.output.warn(file.path, &text)?;
            return Ok(Onward::Into);
        }
        let change = if self.arguments.dry_run {
            would_set(target, label)
        } else {
            target.set(label)
        };
        match change {
            Ok(Change::First) => self.counters.first += 1,
            Ok(Change::Changed(_)) => self.counters.changed += 1,
            Ok(Change::Unchanged) => self.counters.unchanged += 1,
            Err(error) => return self.refused(&file, error),
        }
        if self.arguments.verbose || self.arguments.unlabelled {
            self.describe(file.path, label, &decided)?;
        }
        Ok(Onward::Into)
    }

    /// Refuses to give a file a second label under another of its names: a user could link somebody else's
    /// file below a path of their own.
    fn contradiction(&mut self, file: &Visited<'_>, label: &Label) -> Option<String> {
        if file.links < 2 || file.kind == usher_label::FileKind::Directory {
            return None;
        }
        match self.named.get(&file.identity) {
            Some(earlier) if earlier == label => None,
            Some(earlier) => Some(format!(
                "the file has another name, for which the label is {earlier} and not {label}; it keeps \
                 the former"
            )),
            None if self.named.len() >= REMEMBERED => Some(format!(
                "the file has several names, and more than {REMEMBERED} such files were met; label it \
                 with setfmac"
            )),
            None => {
                self.named.insert(file.identity, label.clone());
                None
            }
        }
    }

    fn refused(&mut self, file: &Visited<'_>, error: FileLabelError) -> io::Result<Onward> {
        if error != FileLabelError::NotSupported {
            self.counters.failed += 1;
            self.output.warn(file.path, &error.to_string())?;
            return Ok(Onward::Into);
        }
        self.counters.passed += 1;
        if self.arguments.strict {
            self.stopped = Some(ToolError::NoLabels(shown(file.path), error));
            return Ok(Onward::Stop);
        }
        self.output.warn(file.path, &error.to_string())?;
        Ok(Onward::Past)
    }

    fn describe(&self, path: &[u8], label: &Label, decided: &Match<'_>) -> io::Result<()> {
        let lines = decided.entries.iter();
        let lines: Vec<String> = lines
            .map(|(file, entry)| format!("{}:{}", file.name(), entry.line))
            .collect();
        let mut object = of_path(path);
        object.insert("label".to_owned(), json!(label));
        object.insert("by".to_owned(), json!(lines));
        let text = format!("{}: {label} by {}", shown(path), lines.join(", "));
        self.output.print(&text, object)
    }

    fn describe_unmatched(&self, path: &[u8]) -> io::Result<()> {
        let mut object = of_path(path);
        object.insert("label".to_owned(), Value::Null);
        let text = format!("{}: no label and no specification", shown(path));
        self.output.print(&text, object)
    }

    fn finish(self) -> Result<bool, ToolError> {
        let is_whole = self.stopped.is_none();
        let kept = match (&self.checkpoint, is_whole) {
            (Some(checkpoint), true) => checkpoint.remove(),
            _ => self.write_checkpoint(),
        };
        kept?;
        if self.output.is_json || !self.output.is_quiet {
            let mut object = self.counters.object();
            object.insert("whole".to_owned(), json!(is_whole));
            self.output.print(&self.counters.to_string(), object)?;
        }
        match self.stopped {
            Some(error) => Err(error),
            None => Ok(self.counters.failed == 0),
        }
    }
}

/// Returns the change that setting a label would make.
fn would_set(file: LabelledFile<'_>, label: &Label) -> Result<Change, FileLabelError> {
    let Some(before) = file.label()? else {
        return Ok(Change::First);
    };
    if before.with(label).map_err(FileLabelError::TooLarge)? == before {
        Ok(Change::Unchanged)
    } else {
        Ok(Change::Changed(before))
    }
}
