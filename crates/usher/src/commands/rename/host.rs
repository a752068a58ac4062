//! `usher host rename`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;
use usher_base::HostName;
use usher_daemon::files::{remove_if_there, write_atomically};
use usher_local::applied::Applied;
use usher_policy::{Place, PolicyMistake, Source};

use crate::commands::configuration;
use crate::commands::host::{self, file_of};
use crate::failure::{At, Failure};
use crate::output::Output;

/// Renames a host in its block and in every place of the policy folder that names it. `usher policy apply`
/// puts it in force.
///
/// # Errors
/// When `usher host add` did not write the block; when the new name is taken. When a file cannot be written;
/// all are as before then.
pub fn host(output: &Output, former: &HostName, fresh: &HostName) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let (path, target) = (file_of(former), file_of(fresh));
    if target.symlink_metadata().is_ok() {
        return Err(Failure::HostExists(target));
    }
    let whole = configuration::collect()?;
    if configuration::check_applied(&whole)?
        .policy
        .hosts
        .contains_key(fresh)
    {
        return Err(Failure::Refused(format!(
            "the policy has a host {fresh} already"
        )));
    }
    let file = host::block_file(&whole, former)?;
    let mut renamed = whole.clone();
    let sources = &mut renamed.sources;
    if let Some(source) = sources.iter_mut().find(|source| source.name == file.name) {
        source.text = rename_block(&source.text, former, fresh).ok_or_else(|| {
            Failure::Refused(format!(
                "{}: cannot find the name in the block",
                source.name
            ))
        })?;
    }
    rename_references(&mut renamed, former, fresh)?;
    let changed = whole.sources.iter().zip(&renamed.sources);
    let changed: Vec<_> = changed
        .filter(|(before, after)| before.text != after.text)
        .collect();
    write_renamed(&changed, &path, &target)?;
    let files: Vec<PathBuf> = changed
        .iter()
        .map(|(before, _)| Path::new(&before.name))
        .map(|name| {
            if name == path {
                target.clone()
            } else {
                name.into()
            }
        })
        .collect();
    // JSON of `usher host rename`:
    //   files: List of texts: the files that were written.
    output.print(&json!({ "files": files }), || {
        let wrote = files.iter().map(|file| format!("wrote {}\n", file.display()));
        wrote.collect::<String>()
            + "`usher policy apply` puts it in force and ends the host's sessions under its former name\n"
    });
    Ok(())
}

/// Writes the changed files, and the host's own under its new name: all, or none.
///
/// # Errors
/// When a file cannot be written. The message names the files that could not be put back.
fn write_renamed(
    changed: &[(&Source, &Source)],
    path: &Path,
    target: &Path,
) -> Result<(), Failure> {
    let written = || -> Result<(), Failure> {
        for (_, after) in changed {
            let name = Path::new(&after.name);
            let to = if name == path { target } else { name };
            write_atomically(to, after.text.as_bytes(), 0o644).at(to)?;
        }
        std::fs::remove_file(path).at(path)
    };
    let Err(failure) = written() else {
        return Ok(());
    };
    let mut left = Vec::new();
    // First remove the new file, which takes room.
    if let Err(error) = remove_if_there(target) {
        left.push(format!("{}: remove it ({error})", target.display()));
    }
    for (before, _) in changed {
        let name = Path::new(&before.name);
        let is_as_before = std::fs::read(name).is_ok_and(|bytes| bytes == before.text.as_bytes());
        if !is_as_before && let Err(error) = write_atomically(name, before.text.as_bytes(), 0o644) {
            let remedy = "write the host's former name there again";
            left.push(format!("{}: {remedy} ({error})", before.name));
        }
    }
    if left.is_empty() {
        return Err(failure);
    }
    let text = format!(
        "{failure}. Not all files are as before: {}",
        left.join("; ")
    );
    Err(Failure::of_file(path, text))
}

/// The text of a file that has only this host's block, with another name.
fn rename_block(text: &str, former: &HostName, fresh: &HostName) -> Option<String> {
    let mut line = 0;
    for part in text.split_inclusive('\n') {
        let indented = part.trim_start();
        if let Some(rest) = indented.strip_prefix("host")
            && rest.starts_with([' ', '\t'])
            && let Some(after) = rest.trim_start().strip_prefix(former.as_ref())
            && !after.starts_with(|next: char| next.is_ascii_alphanumeric() || "._-".contains(next))
        {
            let begin = line + part.len() - after.len() - former.as_ref().len();
            let end = begin + former.as_ref().len();
            return Some(format!("{}{fresh}{}", &text[..begin], &text[end..]));
        }
        line += part.len();
    }
    None
}

/// Replaces the former name wherever the policy's check reports it as an unknown host.
fn rename_references(
    whole: &mut Applied,
    former: &HostName,
    fresh: &HostName,
) -> Result<(), Failure> {
    loop {
        let failure = match configuration::check_applied(whole) {
            Ok(_) => return Ok(()),
            Err(failure) => failure,
        };
        let Failure::Policy { errors, .. } = &failure else {
            return Err(failure);
        };
        let is_reference = |mistake: Option<&PolicyMistake>| matches!(mistake, Some(PolicyMistake::UnknownHost { found, .. }) if found == former);
        let places: BTreeSet<(String, usize, usize)> = errors
            .iter()
            .filter(|error| is_reference(error.is()))
            .map(|error| {
                let Place { file, line, column } = &error.place;
                (file.clone(), *line, *column)
            })
            .collect();
        if places.is_empty() {
            return Err(failure);
        }
        // From the end of each file, so that earlier places stay where they are.
        for (file, line, column) in places.into_iter().rev() {
            let source = whole.sources.iter_mut().find(|source| source.name == file);
            let replaced = source.and_then(|source| {
                source.text = replace_at(&source.text, (line, column), former, fresh)?;
                Some(())
            });
            if replaced.is_none() {
                return Err(Failure::Refused(format!(
                    "{file}:{line}:{column}: names {former}; write {fresh} there first"
                )));
            }
        }
    }
}

/// A text with a name replaced at a line and a column, both from 1. None if the name does not stand there.
fn replace_at(
    text: &str,
    (line, column): (usize, usize),
    former: &HostName,
    fresh: &HostName,
) -> Option<String> {
    let lines = text.split_inclusive('\n');
    let before: usize = lines.clone().take(line - 1).map(str::len).sum();
    let found = lines.clone().nth(line - 1)?;
    let inside = found.char_indices().nth(column - 1)?.0;
    let begin = before + inside;
    let after = text[begin..].strip_prefix(former.as_ref())?;
    Some(format!("{}{fresh}{after}", &text[..begin]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t";

    fn names() -> (HostName, HostName) {
        ("laptop".parse().unwrap(), "notebook".parse().unwrap())
    }

    #[test]
    fn a_blocks_name_is_replaced_and_nothing_else() {
        let (former, fresh) = names();
        let text = "# host laptop\n  host  laptop { address 192.0.2.1; }\n";
        assert_eq!(
            rename_block(text, &former, &fresh).unwrap(),
            "# host laptop\n  host  notebook { address 192.0.2.1; }\n"
        );
        for other in ["host laptop2 {}", "hosts laptop;", "host lap {}"] {
            assert_eq!(rename_block(other, &former, &fresh), None, "{other}");
        }
    }

    #[test]
    fn every_place_that_names_a_host_is_found() {
        let (former, fresh) = names();
        let source = |name: &str, text: String| Source {
            name: name.into(),
            text,
        };
        let mut whole = Applied::default();
        let block = format!("host notebook {{ address 192.0.2.1; key \"{KEY}\"; }}\n");
        let policy = "# \u{fc}ber laptop\nusers u { member laptop; }\n\
            service s { program \"/bin/sh\"; listen 7000; style user; users u; hosts laptop; }\n\
            service t { program \"/bin/laptop\"; listen 7001; style user; users u; hosts \
            laptop; }\nclient c { users u; service s at laptop port 7000; }\n";
        whole.sources.push(source("a.policy", block));
        whole.sources.push(source("b.policy", policy.into()));
        rename_references(&mut whole, &former, &fresh).unwrap();
        let expected = policy
            .replace("hosts laptop", "hosts notebook")
            .replace("at laptop", "at notebook");
        assert_eq!(whole.sources[1].text, expected);
        assert!(configuration::check_applied(&whole).is_ok());
    }

    /// A host's own file and three others, of which one is in no folder and cannot be written.
    #[test]
    fn a_file_that_cannot_be_written_leaves_all_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let source = |name: &str, text: &str| Source {
            name: path(name).to_str().unwrap().to_owned(),
            text: text.to_owned(),
        };
        let names = [
            "a.policy",
            "host-laptop.policy",
            "none/b.policy",
            "z.policy",
        ];
        let before = names.map(|name| source(name, "laptop"));
        let after = names.map(|name| source(name, "notebook"));
        let all: Vec<_> = before.iter().zip(&after).collect();
        let there = ["a.policy", "host-laptop.policy", "z.policy"];
        for name in there {
            std::fs::write(path(name), "laptop").unwrap();
        }
        let inode = |name: &str| {
            use std::os::unix::fs::MetadataExt;
            path(name).metadata().unwrap().ino()
        };
        let untouched = ["host-laptop.policy", "z.policy"].map(inode);
        let (own, target) = (path("host-laptop.policy"), path("host-notebook.policy"));
        let failure = write_renamed(&all, &own, &target).unwrap_err().to_string();
        for name in there {
            assert_eq!(
                std::fs::read_to_string(path(name)).unwrap(),
                "laptop",
                "{name}"
            );
        }
        assert_eq!(["host-laptop.policy", "z.policy"].map(inode), untouched);
        assert!(!target.exists());
        // none/b.policy was not there before either.
        let left = "Not all files are as before: ";
        let (_, left) = failure.split_once(left).expect(&failure);
        assert!(
            left.contains("none/b.policy") && !left.contains("a.policy: "),
            "{failure}"
        );

        std::fs::create_dir(path("none")).unwrap();
        std::fs::write(path("none/b.policy"), "laptop").unwrap();
        write_renamed(&all, &own, &target).unwrap();
        for name in [
            "a.policy",
            "host-notebook.policy",
            "none/b.policy",
            "z.policy",
        ] {
            assert_eq!(
                std::fs::read_to_string(path(name)).unwrap(),
                "notebook",
                "{name}"
            );
        }
        assert!(!own.exists());
    }
}
