//! The demo's output.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::DemoError;

/// Writes to standard output, in colour when that is a terminal.
pub(crate) struct Teller {
    colour: bool,
}

impl Teller {
    pub(crate) fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { colour }
    }

    /// A new part of the story.
    pub(crate) fn heading(&self, text: &str) {
        self.line(&format!("\n{}", self.paint("1", text)));
    }

    /// A command as it could be typed on `host` by `user`.
    pub(crate) fn command(&self, user: &str, host: &str, line: &str) {
        self.line(&format!(
            "  {} {line}",
            self.paint("36", &format!("{user}@{host}$"))
        ));
    }

    /// Shows the output of a program.
    pub(crate) fn quote(&self, text: &str) {
        for line in text.lines() {
            let line: String = line.trim_end().chars().take(200).collect();
            self.line(&format!("      {}", self.paint("2", &line)));
        }
    }

    /// A checked statement, and the time that the step took.
    pub(crate) fn fact(&self, text: &str, took: Option<Duration>) {
        let took = took
            .map(|took| format!(" ({})", duration(took)))
            .unwrap_or_default();
        self.line(&format!("  {} {text}{took}", self.paint("32", "ok")));
    }

    /// Prints `claim` if it is true.
    pub(crate) fn demand(
        &self,
        claim: impl Into<String>,
        is_true: bool,
        took: Option<Duration>,
        seen: impl FnOnce() -> String,
    ) -> Result<(), DemoError> {
        let claim = claim.into();
        if !is_true {
            return Err(DemoError::Untrue {
                claim,
                seen: seen(),
            });
        }
        self.fact(&claim, took);
        Ok(())
    }

    /// Something that the demo cannot show here, and why.
    pub(crate) fn note(&self, text: &str) {
        self.line(&format!("  {} {text}", self.paint("33", "--")));
    }

    pub(crate) fn end(&self, took: Duration) {
        let text = format!(
            "All of it is so, and all of it is removed ({}).",
            duration(took)
        );
        self.line(&format!("\n{}", self.paint("1", &text)));
    }

    pub(crate) fn failure(&self, text: &str) {
        // Flush first, so that the order is right even if both streams go to one file.
        eprintln!("\nusher-demo: {text}");
    }

    fn line(&self, text: &str) {
        let mut output = std::io::stdout().lock();
        // A reader that has gone (`| head`) ends the output, not the demo's duty to clean up.
        let _ = writeln!(output, "{text}").and_then(|()| output.flush());
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

fn duration(took: Duration) -> String {
    if took < Duration::from_secs(1) {
        format!("{:.1} ms", took.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", took.as_secs_f64())
    }
}
