//! `usher mac ps`: the processes of this host with their labels.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use usher::mac::{Label, labels_of_processes};

use crate::failure::{At, Failure};
use crate::output::{Output, or_dash, row, table};

/// A process.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Process {
    /// Its number.
    pid: i32,
    /// The number of its user.
    uid: u32,
    /// Its command.
    command: String,
    /// Null: no element.
    label: Option<Label>,
}

/// Prints the processes that the caller sees.
///
/// # Errors
/// When /proc or the labels cannot be read.
pub(super) fn run(output: &Output) -> Result<(), Failure> {
    let folder = Path::new("/proc");
    let labels = labels_of_processes().map_err(|error| Failure::Refused(error.to_string()))?;
    let labels = labels.into_iter().collect();
    let mut processes = Vec::new();
    for id in ids(folder).at(folder)? {
        let path = folder.join(id.to_string());
        processes.extend(process(id, path, &labels)?);
    }
    // JSON of `usher mac ps`: a list of [`Process`].
    output.print(&processes, || processes_text(&processes));
    Ok(())
}

fn ids(folder: &Path) -> io::Result<Vec<i32>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(folder)? {
        ids.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok()),
        );
    }
    ids.sort_unstable();
    Ok(ids)
}

/// A process; none if it has ended meanwhile.
fn process(
    pid: i32,
    path: PathBuf,
    labels: &BTreeMap<i32, Label>,
) -> Result<Option<Process>, Failure> {
    let read = || {
        let command = fs::read(path.join("comm"))?;
        let command = String::from_utf8_lossy(&command).trim_end().to_owned();
        Ok((fs::metadata(&path)?.uid(), command))
    };
    let (uid, command) = match read() {
        Ok(read) => read,
        Err(error) if has_ended(&error) => return Ok(None),
        Err(error) => return Err(Failure::File { path, error }),
    };
    let label = labels.get(&pid).filter(|label| !label.is_empty());
    Ok(Some(Process {
        pid,
        uid,
        command,
        label: label.cloned(),
    }))
}

fn has_ended(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

fn processes_text(processes: &[Process]) -> String {
    let rows = processes.iter().map(|process| {
        let label = or_dash(process.label.as_ref());
        row![process.pid, process.uid, label, process.command]
    });
    table(["PID", "UID", "LABEL", "COMMAND"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed_and_one_that_has_ended_is_not() {
        let own = std::process::id().cast_signed();
        assert!(ids(Path::new("/proc")).unwrap().contains(&own));
        let labels = [(own, "biba/low".parse().unwrap())].into();
        let of = |pid| process(pid, PathBuf::from(format!("/proc/{pid}")), &labels).unwrap();
        let listed = of(own).unwrap();
        assert_eq!((listed.pid, listed.label.as_ref()), (own, labels.get(&own)));
        let gone = of(i32::MAX);
        assert_eq!(gone, None);
    }

    #[test]
    fn a_process_without_an_element_has_a_dash() {
        let process = |pid, label: Option<&str>| Process {
            pid,
            uid: 0,
            command: "sshd".into(),
            label: label.map(|label| label.parse().unwrap()),
        };
        let expected =
            "PID  UID  LABEL      COMMAND\n1    0    biba/high  sshd\n20   0    -          sshd\n";
        assert_eq!(
            processes_text(&[process(1, Some("biba/high")), process(20, None)]),
            expected
        );
    }
}
