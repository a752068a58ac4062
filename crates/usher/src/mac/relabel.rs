//! `usher mac relabel`: labels files by the specification of the policy in force, as setfsmac(8) does; or has
//! the labeller do so. The labeller labels only files that no less trusted process could have put in their
//! place.
//!
//! The specification is the file as the labeller has read it. A file that was edited since is refused,
//! because the labeller would not judge the new labels by it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use label_tools::setfsmac;
use usher_daemon::control::{ControlError, ask_daemon};
use usher_local::requests::{Mac, MacLook, digest_of};
use usher_local::roles;
use usher_policy::joined;
use usher_policy::mac::ModuleSettings;

use crate::commands::configuration;
use crate::failure::{At, Failure};
use crate::output::{Output, warn};

/// Options of `usher mac relabel`.
#[derive(Debug, clap::Args)]
pub struct Request {
    /// The trees, absolute paths on multilabel file systems; otherwise all of these file systems
    #[arg(conflicts_with = "unasked")]
    trees: Vec<PathBuf>,
    /// Set nothing itself: have the labeller look at all files, and set what it sets unasked
    #[arg(long, conflicts_with_all = ["dry_run", "verbose"])]
    unasked: bool,
    /// Set nothing; report what would be set
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print each file that the specification matches, with the line that decides
    #[arg(short, long)]
    verbose: bool,
    /// Print no warnings and no summary
    #[arg(short, long)]
    quiet: bool,
    /// Label by the file of the specification as it is now, also where it was edited and not applied
    #[arg(long, conflicts_with = "unasked")]
    edited: bool,
    /// Do nothing where the policy in force names no specification (for hooks of package managers)
    #[arg(long)]
    if_specified: bool,
}

/// Labels the files.
///
/// # Errors
/// The policy in force names no specification, its file differs from the one in force, or a file could not be
/// labelled.
pub(super) fn run(output: &Output, request: &Request) -> Result<(), Failure> {
    let checked = configuration::check_applied(&configuration::in_force()?)?;
    let mut blocks = checked.policy.mac.iter();
    let framework = blocks.find_map(|block| match &block.settings {
        ModuleSettings::Framework(framework) => Some(framework),
        _ => None,
    });
    let named =
        framework.and_then(|framework| Some((framework, framework.specification.as_ref()?)));
    let Some((framework, (specification, _))) = named else {
        if request.if_specified {
            return Ok(());
        }
        let reason = "the policy in force names no specification: write one (setfsmac(8)), name it in `mac \
                      framework { specification \"/etc/usher/files.mac\"; }`, then `usher policy apply`";
        return Err(Failure::refused(reason));
    };
    if request.unasked {
        let view = ask_daemon(roles::Labeller, &MacLook {})?;
        let paths = joined(view.multilabel.iter().map(|one| &one.path), ", ");
        if !request.quiet {
            // JSON of `usher mac relabel --unasked`: as `usher mac status`.
            output.print(&view, || match paths.as_str() {
                "" => "the labeller watches no multilabel file system\n".to_owned(),
                paths => format!("the labeller looks at all files of {paths} again\n"),
            });
        }
        return Ok(());
    }
    if !request.edited {
        require_in_force(Path::new(specification), request.quiet)?;
    }
    let mut trees = request.trees.clone();
    if trees.is_empty() {
        trees.extend(framework.multilabel.iter().map(PathBuf::from));
    }
    if trees.is_empty() {
        let reason = "the policy in force calls no file system multilabel, so no file has labels";
        return Err(Failure::refused(reason));
    }
    let options = [
        (request.dry_run, "-n"),
        (request.verbose, "-v"),
        (request.quiet, "-q"),
        (output.json, "--json"),
    ];
    let chosen = options.into_iter().filter(|(is_chosen, _)| *is_chosen);
    let mut words = vec![
        "setfsmac".into(),
        "-x".into(),
        "-f".into(),
        specification.into(),
    ];
    words.extend(chosen.map(|(_, option)| PathBuf::from(option)));
    words.push("--".into());
    words.extend(trees);
    let arguments = setfsmac::Arguments::try_parse_from(words);
    let arguments = arguments.map_err(|error| Failure::Refused(error.to_string()))?;
    if arguments.run() == ExitCode::SUCCESS {
        Ok(())
    } else {
        Err(Failure::refused(
            "some files do not have their labels: see above",
        ))
    }
}

/// Checks that the file of the specification is as the labeller has read it. Without a labeller no
/// specification is in force, and the file counts.
fn require_in_force(specification: &Path, is_quiet: bool) -> Result<(), Failure> {
    let in_force = match ask_daemon(roles::Labeller, &Mac {}) {
        Ok(view) => view.specification,
        Err(ControlError::NotRunning(..)) => {
            if !is_quiet {
                let path = specification.display();
                warn(&format!(
                    "no labeller runs, so the file {path} counts as it is now"
                ));
            }
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let text = std::fs::read(specification).at(specification)?;
    if in_force == Some(digest_of(&text)) {
        return Ok(());
    }
    Err(Failure::of_file(
        specification,
        "not the specification in force: the file was edited since it was applied, or the labeller could not read it \
         (usher mac status); put it in force by `usher policy apply`, or label by the file as it is with --edited",
    ))
}
