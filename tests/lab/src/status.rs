//! The status that the daemons of a host report.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use crate::daemon::Role;
use crate::error::{Attempt, LabError};
use crate::host::Host;
use crate::waiting::PATIENCE;

impl Host {
    /// Reads a number of a daemon's status in the way of the command line (docs/PROTOCOL.md, "Control
    /// socket"). `usher doctor` would show them all, but tries every program in the kernel first.
    ///
    /// # Errors
    /// When the daemon does not answer, or has no such number.
    pub fn number(&self, role: Role, name: &str) -> Result<u64, LabError> {
        let status = self.status(role)?;
        let number = status["numbers"][name].as_u64();
        number
            .ok_or_else(|| io::Error::other(format!("no {name} in {status}")))
            .attempt(|| self.place(role))
    }

    /// The generation of the configuration that a daemon has in force.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn generation(&self, role: Role) -> Result<u64, LabError> {
        let status = self.status(role)?;
        let number = status["generation"].as_u64();
        number
            .ok_or_else(|| io::Error::other(format!("no generation in {status}")))
            .attempt(|| self.place(role))
    }

    fn place(&self, role: Role) -> String {
        format!("host {}: the status of its {}", self.name(), role.name())
    }

    fn status(&self, role: Role) -> Result<serde_json::Value, LabError> {
        let socket = format!("/run/usher/{}/control.sock", role.name());
        let ask = || -> io::Result<serde_json::Value> {
            let mut stream = UnixStream::connect(self.path(socket))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"{\"request\":\"status\"}\n")?;
            let mut reader = BufReader::new(stream);
            let mut answer = String::new();
            // The daemon acknowledges the request by an empty line, and then answers.
            while answer.trim().is_empty() {
                if reader.read_line(&mut answer)? == 0 {
                    break;
                }
            }
            Ok(serde_json::from_str(&answer)?)
        };
        ask().attempt(|| self.place(role))
    }

    /// Those of the named findings of `usher doctor` that do not work here, with its words.
    ///
    /// # Errors
    /// When `usher doctor` cannot be run, or prints something other than JSON.
    pub fn lacking(&self, needed: &[&str]) -> Result<Vec<String>, LabError> {
        // It fails where anything at all does not work.
        let told = self.command(["usher", "--json", "doctor"]).run()?.stdout;
        let findings: Vec<serde_json::Value> = serde_json::from_str(&told)
            .map_err(io::Error::from)
            .attempt(|| format!("host {}: usher doctor", self.name()))?;
        let missing = findings.iter().filter(|finding| {
            needed.iter().any(|name| finding["name"] == *name) && finding["works"] == false
        });
        let words = |text: &serde_json::Value| text.as_str().unwrap_or_default().to_owned();
        let missing = missing
            .map(|finding| format!("{}: {}", words(&finding["name"]), words(&finding["detail"])));
        Ok(missing.collect())
    }
}
