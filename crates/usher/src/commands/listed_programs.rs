//! Warnings of `policy check` and `policy apply` about the programs that `client` blocks list.

use std::fs::File;
use std::io::Read;

use usher_policy::{BlockKind, Clause, Policy};

use super::warning::Warning;

/// Folders that the signer's unit does not see, or sees with other contents.
const HIDDEN: [&str; 5] = ["/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"];
/// Bytes to read of a script, more than the kernel reads of its first line.
const FIRST_LINE: u64 = 512;

/// Listed programs that no process of this host can run.
pub fn of_no_use(policy: &Policy) -> Vec<Warning> {
    let blocks = policy.clients.values();
    let listed = blocks.filter_map(|block| {
        let entry = block.services.first()?;
        Some((&block.name, entry.programs.listed()?))
    });
    listed
        .flat_map(|(block, paths)| {
            let faults = paths.iter().filter_map(|path| Some((path, fault(path)?)));
            faults.map(move |(path, fault)| {
                let value = format!("\"{path}\"");
                let clause = Clause::value(BlockKind::Client, block, "programs", value);
                Warning::about(clause, format!("`client {block}`: {fault}"))
            })
        })
        .collect()
}

fn fault(path: &str) -> Option<String> {
    if let Some(folder) = HIDDEN.iter().find(|folder| path.starts_with(**folder)) {
        return Some(format!(
            "the signer's unit does not see {folder}, so no process is recognized as {path}; install \
             it elsewhere"
        ));
    }
    if let Some(fault) = fault_of_program(path) {
        return Some(fault);
    }
    let interpreter = interpreter(path)?;
    Some(format!(
        "{path} is a script, and the kernel runs `{interpreter}`, so no process is recognized as the \
         script; list the interpreter, which permits all its scripts, or use the service from \
         another program"
    ))
}

/// The reason why a path is no program of this host.
pub(super) fn fault_of_program(path: &str) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let executable = std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    (!executable).then(|| format!("{path} is missing on this host or not executable"))
}

/// The interpreter that the first line of a script names, with its argument.
pub(super) fn interpreter(path: &str) -> Option<String> {
    let mut start = Vec::new();
    let file = File::open(path).ok()?;
    // An interpreter could not read the file either.
    file.take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n');
    let line = String::from_utf8_lossy(line.take(1).next()?).into_owned();
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_one_is_told_with_the_reason() {
        assert_eq!(fault("/usr/bin/env"), None);
        let told = |path: &str, words: &str| {
            let fault = fault(path).unwrap_or_default();
            assert!(fault.contains(words), "{path}: {fault}");
        };
        told("/usr/bin/no-such-program", "is missing on this host");
        told("/etc/passwd", "not executable");
        told("/home/alice/bin/program", "does not see /home/");
        // Debian's, of the package debianutils or of perl-base.
        told("/usr/bin/savelog", "`/bin/sh`");
    }
}
