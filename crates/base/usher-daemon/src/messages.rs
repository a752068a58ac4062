//! Messages of the daemons: one line each on standard error, with the priority in the form of the journal,
//! without control characters, and with a quota for each user.

mod quotas;

use std::fmt;
use std::os::linux::fs::MetadataExt as _;
use std::time::Instant;

use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{self, Format, Full, Writer};
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use quotas::{Fate, Quotas};

/// Selects the messages, for example `usherd=debug,info`; `info` unless set.
const FILTER: &str = "USHER_LOG";

/// The recent messages of this process about each user.
static QUOTAS: Mutex<Option<Quotas>> = Mutex::new(None);

/// Sends the messages of this process, panics included, to standard error. When that is a stream of
/// the journal (`$JOURNAL_STREAM` of systemd.exec(5)), a line begins with its priority
/// (sd-daemon(3)) and has no time, which the journal adds.
pub fn to_standard_error() {
    let journal = is_journal();
    let filter = EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new("info"));
    let format = format::format().with_target(false).with_ansi(false);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // Else a broken log is reported by eprintln!, which panics and would end the daemon.
        .log_internal_errors(false)
        .event_format(Lines { format, journal })
        .init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

/// Reports how many lines were left out for users whose minute is over. The next message reports it
/// otherwise.
pub fn summarize() {
    let left_out = QUOTAS
        .lock()
        .as_mut()
        .map(|quotas| quotas.summaries(Instant::now()));
    for (what, count) in left_out.into_iter().flatten() {
        tracing::warn!("{count} more lines were left out: {what}");
    }
}

/// Whether standard error is the stream that `$JOURNAL_STREAM` names by device and inode: a
/// process may have inherited the variable and write elsewhere.
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else {
        return false;
    };
    let Ok(status) = std::fs::metadata("/proc/self/fd/2") else {
        return false;
    };
    stream == format!("{}:{}", status.st_dev(), status.st_ino())
}

/// Priorities of sd-daemon(3): err, warning, info, debug.
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// The format of a line.
struct Lines {
    format: Format<Full, SystemTime>,
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let fate = QUOTAS
            .lock()
            .get_or_insert_default()
            .admit(event, Instant::now());
        if fate == Fate::LeftOut {
            return Ok(());
        }
        let mut text = String::new();
        let into = Writer::new(&mut text);
        if self.journal {
            let format = self.format.clone().without_time().with_level(false);
            format.format_event(context, into, event)?;
            write!(writer, "<{}>", priority(event.metadata().level()))?;
        } else {
            self.format.format_event(context, into, event)?;
        }
        if fate == Fate::Last {
            text.truncate(text.trim_end().len());
            text.push_str(" (further lines like this one are left out for a minute)");
        }
        write_escaped(&mut writer, text.trim_end())?;
        writer.write_char('\n')
    }
}

/// Writes text that others may have written. Characters that could begin a line, move a terminal's cursor
/// or turn the direction of writing become escapes.
fn write_escaped(to: &mut impl fmt::Write, text: &str) -> fmt::Result {
    for character in text.chars() {
        let is_direction_or_line = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || is_direction_or_line {
            write!(to, "{}", character.escape_default())?;
        } else {
            to.write_char(character)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_begin_a_line_is_escaped_and_other_text_is_not() {
        let mut text = String::new();
        write_escaped(&mut text, "a\n<3>b\r\u{1b}[1m\u{202e}\u{2028}\u{9b}").unwrap();
        assert_eq!(text, "a\\n<3>b\\r\\u{1b}[1m\\u{202e}\\u{2028}\\u{9b}");
        text.clear();
        write_escaped(&mut text, "J\u{fc}rgen's \"imap\" \\ \u{4e2d}").unwrap();
        assert_eq!(text, "J\u{fc}rgen's \"imap\" \\ \u{4e2d}");
    }
}
