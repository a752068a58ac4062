//! Whether a process that modules restrict can have brought a file to its path: by the levels of its
//! directory, and by the types that domains reach.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use usher_label::{Auxiliary, ElementKind, ElementValue, Level, TypedValue};
use usher_policy::mac::te::{Class, MODULE as TE, Permissive, TypeEnforcement};
use usher_system_label::file::LabelledFile;

use super::tree::Tree;

/// The module of secrecy.
pub(super) const MLS: &str = "mls";

/// The modules of integrity.
pub(super) const BIBA: &str = "biba";
pub(super) const LOMAC: &str = "lomac";

/// The type of files that have none.
pub(super) const UNTYPED: &str = "untyped";

/// The types by which domains can bring files to paths.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Types of directories in which domains make names, and of files that they write.
    made: BTreeSet<String>,
    /// Types of directories that domains move, with all that is below.
    moved: BTreeSet<String>,
}

/// The types that domains reach. `None`: all types, because a domain is permissive.
pub(super) fn shared(te: &TypeEnforcement) -> Option<Shared> {
    match &te.permissive {
        Permissive::Domains(domains) if domains.is_empty() => {}
        Permissive::Any | Permissive::Domains(_) => return None,
    }
    let types = |class: Class, permissions: &[&str]| -> BTreeSet<String> {
        let rules = te.allow.iter().filter(|(what, (permitted, _))| {
            what.class == class && permissions.iter().any(|one| permitted.contains(*one))
        });
        let places = rules.flat_map(|(what, _)| te.expand(what));
        places.map(|place| place.object.to_string()).collect()
    };
    let mut made = types(Class::Directory, &["add_name"]);
    made.extend(types(Class::File, &["write", "append"]));
    let moved = types(Class::Directory, &["rename"]);
    Some(Shared { made, moved })
}

/// Whether no domain can have brought a file to its path: the file has no type, or its directory's, and no
/// domain makes names in directories of that type, writes files of it, or moves a directory on the way.
pub(super) fn is_no_domains(
    shared: Option<&Shared>,
    tree: &Tree,
    path: &Path,
    directory: Option<&OwnedFd>,
    of_file: Option<&ElementValue>,
) -> io::Result<bool> {
    let Some(directory) = directory else {
        // The file is the root of a file system that the policy names.
        return Ok(of_file.is_none());
    };
    let Some(shared) = shared else {
        return Ok(false);
    };
    let directory = type_or_none(directory)?;
    if of_file.is_some_and(|of_file| of_file.as_ref() != directory)
        || shared.made.contains(&directory)
        // The file may have been written at a former path.
        || (of_file.is_none() && shared.made.contains(UNTYPED))
    {
        return Ok(false);
    }
    let above = path.ancestors().skip(1);
    // Leave out the root of the file system: no domain can move it, because it is mounted.
    for above in above.filter(|above| above.parent().is_some()) {
        if !shared.moved.is_empty() && shared.moved.contains(&type_or_none(&tree.open(above)?)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file gets a level of `mls`. A process of a lower level that has mapped the file could still read
/// what others write into it, so the file must have been made where no such process gets.
pub(super) fn is_secret(
    directory: Option<&OwnedFd>,
    of_file: Option<&ElementValue>,
    wanted: &ElementValue,
) -> io::Result<bool> {
    let of_file = of_file.map(|of_file| level(MLS, of_file));
    if !matches!(of_file, None | Some(Some(Level::Low))) {
        return Ok(false);
    }
    let (Some(wanted), Some(directory)) = (level(MLS, wanted), directory) else {
        return Ok(false);
    };
    let directory = level_at(directory, MLS)?;
    let dominates = |directory: Level| directory != Level::Equal && directory.dominates(&wanted);
    let is_one = !matches!(wanted, Level::Low | Level::Equal);
    Ok(is_one && directory.is_some_and(dominates))
}

/// Whether, by its directory's level, a file's maker was at least as trustworthy as this level, or for `low`
/// of `mls`, knew no secret. The root of a file system, which the policy names, has no maker.
pub(super) fn is_makers(
    directory: Option<&OwnedFd>,
    module: &str,
    wanted: &ElementValue,
) -> io::Result<bool> {
    let Some(directory) = directory else {
        return Ok(true);
    };
    let directory = level_at(directory, module)?;
    Ok(match (module, level(module, wanted), directory) {
        (MLS, Some(Level::Low), directory) => directory == Some(Level::Low),
        // `low` makes no process trust the file more.
        (_, Some(Level::Low), _) => true,
        // Every process trusts a file that is exempt.
        (_, Some(Level::Equal), directory) => directory == Some(Level::High),
        (_, Some(wanted), Some(directory)) => {
            directory != Level::Equal && directory.dominates(&wanted)
        }
        (_, _, None) | (_, None, _) => false,
    })
}

/// The level of an open file.
fn level_at(file: &OwnedFd, module: &str) -> io::Result<Option<Level>> {
    let label = LabelledFile::Handle(file.as_fd()).label();
    let label = label.map_err(io::Error::other)?;
    Ok(label.and_then(|label| level(module, label.value(module)?)))
}

/// The level of a file by the value of its element of a module.
pub(super) fn level(module: &str, value: &ElementValue) -> Option<Level> {
    match ElementKind::of_module(module)?.read(value).ok()? {
        TypedValue::Levels(levels) | TypedValue::Auxiliary(Auxiliary::Plain(levels)) => {
            levels.effective().cloned()
        }
        TypedValue::Auxiliary(Auxiliary::With(level, _)) => level,
        TypedValue::Number(_) | TypedValue::Name(_) => None,
    }
}

/// The type of an open file, or [`UNTYPED`].
pub(super) fn type_or_none(file: &OwnedFd) -> io::Result<String> {
    Ok(type_of(file)?.unwrap_or_else(|| UNTYPED.to_owned()))
}

/// The type of an open file.
pub(super) fn type_of(file: &OwnedFd) -> io::Result<Option<String>> {
    let label = LabelledFile::Handle(file.as_fd()).label();
    let label = label.map_err(io::Error::other)?;
    Ok(label.and_then(|label| Some(label.value(TE)?.as_ref().to_owned())))
}
