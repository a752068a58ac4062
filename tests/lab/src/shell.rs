//! Shells in hosts, from terminals outside of the lab.

use std::path::PathBuf;

use crate::command::{BINARIES, PROGRAM_PATH};
use crate::error::LabError;
use crate::host::Host;

impl Host {
    /// Makes a program with which root opens a shell in this host, as this account of it or as root, or runs a
    /// command there. Returns its path as seen from outside. It goes with the lab, and so does what it runs.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn shell(&self, user: Option<&str>) -> Result<PathBuf, LabError> {
        let (name, home) = match user {
            None => ("root", "/root".to_owned()),
            Some(user) => (user, format!("/home/{user}")),
        };
        let become_user = match user {
            None => String::new(),
            Some(user) => format!("setpriv --reuid {user} --regid {user} --init-groups "),
        };
        let (host, anchor, group) = (self.name(), self.anchor(), self.new_group()?);
        let text = format!(
            r#"#!/bin/sh
# Opens a shell as {name} on the lab's host {host}, or runs the command that is given.
exec nsenter --target {anchor} --all -- /usr/bin/env -i "TERM=${{TERM:-dumb}}" LANG=C.UTF-8 \
    PATH={BINARIES}:{PROGRAM_PATH} HOME={home} USER={name} LOGNAME={name} SHELL=/bin/bash sh -c '
        echo $$ >{group}/cgroup.procs || exit 125
        cd
        [ $# -gt 0 ] || set -- bash
        exec {become_user}"$@"' sh "$@"
"#,
            group = group.display(),
        );
        let path = format!("/run/shell-{name}");
        self.write_program(&path, text)?;
        Ok(self.path(path))
    }
}
