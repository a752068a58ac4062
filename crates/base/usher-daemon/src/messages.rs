//! Messages of the daemons: one line each on standard error, with the priority in the form of the journal,
//! without control characters, and with a quota for each user. The journal gets them with fields, once a
//! daemon is ready.

mod native;
mod quotas;

use std::fmt;
use std::path::Path;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{self, Format, Full, Writer};
use tracing_subscriber::fmt::time::SystemTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::events;
use native::Native;
use quotas::{Fate, Quotas};

/// Selects the messages, for example `usherd=debug,info`; `info` unless set.
const FILTER: &str = "USHER_LOG";

/// The recent messages of this process about each user.
static QUOTAS: Mutex<Option<Quotas>> = Mutex::new(None);

/// The way to the journal, while messages have fields there.
static NATIVE: RwLock<Option<Native>> = RwLock::new(None);

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
        // Without this, tracing reports a broken log by eprintln!, which panics and would end the daemon.
        .log_internal_errors(false)
        .event_format(Lines {
            format,
            journal,
            native: &NATIVE,
        })
        .init();
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}

/// Gives messages fields in the journal, if standard error is a stream of it: from now on they are sent by
/// its native protocol, under this identifier, that of the unit. Messages that it does not take go to
/// standard error.
///
/// Call it when the process is sure to go on: the journal asks the kernel about the sender of each message,
/// and finds no unit if the sender has ended meanwhile. About a stream's sender, it has asked before.
pub fn have_fields(identifier: &'static str) {
    if is_journal() {
        *NATIVE.write() = Native::open(Path::new(native::SOCKET), identifier).ok();
    }
}

/// Reports why this process ends, to standard error.
pub fn end(error: &dyn fmt::Display) {
    *NATIVE.write() = None;
    tracing::error!("{error}");
}

/// Reports how many lines were left out for users whose minute is over. Without this call, the next message
/// does.
pub fn summarize() {
    let left_out = QUOTAS
        .lock()
        .as_mut()
        .map(|quotas| quotas.summaries(Instant::now()));
    for (what, count) in left_out.into_iter().flatten() {
        tracing::warn!(name: events::LINES_LEFT_OUT, "{count} more lines were left out: {what}");
    }
}

/// Whether standard error is the stream that `$JOURNAL_STREAM` names by device and inode: a
/// process may have inherited the variable and write elsewhere.
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else {
        return false;
    };
    let Ok(status) = rustix::fs::fstat(std::io::stderr()) else {
        return false;
    };
    stream == format!("{}:{}", status.st_dev, status.st_ino)
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
    native: &'static RwLock<Option<Native>>,
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
        } else {
            self.format.format_event(context, into, event)?;
        }
        if fate == Fate::Last {
            text.truncate(text.trim_end().len());
            text.push_str(" (further lines like this one are left out for a minute)");
        }
        let mut line = String::new();
        write_escaped(&mut line, text.trim_end())?;
        if self.journal {
            let native = self.native.read();
            if native
                .as_ref()
                .is_some_and(|native| native.send(event, &line))
            {
                return Ok(());
            }
            write!(writer, "<{}>", priority(event.metadata().level()))?;
        }
        writeln!(writer, "{line}")
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
    use std::io;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The messages of `tell` that have come to standard error, with the native protocol at a path.
    fn on_standard_error(path: &Path, filter: &str, tell: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Said(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Said {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (said, native) = (Said::default(), Native::open(path, "usher-test").unwrap());
        let (format, writer) = (
            format::format().with_target(false).with_ansi(false),
            said.clone(),
        );
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(Lines {
                format,
                journal: true,
                native: Box::leak(Box::new(RwLock::new(Some(native)))),
            })
            .finish();
        tracing::subscriber::with_default(subscriber, tell);
        String::from_utf8(std::mem::take(&mut *said.0.lock())).unwrap()
    }

    /// A journal, and the path at which it listens.
    fn journal() -> (tempfile::TempDir, std::path::PathBuf, UnixDatagram) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_nonblocking(true).unwrap();
        (folder, path, journal)
    }

    fn next(journal: &UnixDatagram) -> Option<String> {
        let mut bytes = vec![0; 1 << 20];
        let length = journal.recv(&mut bytes).ok()?;
        bytes.truncate(length);
        Some(String::from_utf8(bytes).unwrap())
    }

    // Threat model: A96
    #[test]
    fn no_value_begins_another_field_and_long_ones_are_cut() {
        let (_folder, path, journal) = journal();
        let said = on_standard_error(&path, "info", || {
            let (user, host) = ("eve\nUSHER_USER=root\u{202e}", "\u{fc}".repeat(400));
            tracing::warn!(name: events::SESSION_OPENED, user, %host, uid = 7, claimed_user = None::<&str>,
                pid = 3, "session opened\nPRIORITY=0");
        });
        assert_eq!(said, "");
        let got = next(&journal).unwrap();
        let (cut, id) = (
            "\u{fc}".repeat(256),
            events::message_id(events::SESSION_OPENED).unwrap(),
        );
        let text = got.lines().nth(3).unwrap();
        assert!(
            text.starts_with("MESSAGE=session opened\\nPRIORITY=0 user=\"eve\\nUSHER"),
            "{text}"
        );
        let others: Vec<&str> = got.lines().filter(|line| *line != text).collect();
        let expected = [
            "PRIORITY=4",
            "SYSLOG_FACILITY=3",
            "SYSLOG_IDENTIFIER=usher-test",
            &format!("MESSAGE_ID={id}"),
            "USHER_USER=eve\\nUSHER_USER=root\\u{202e}",
            &format!("USHER_HOST={cut}"),
            "USHER_UID=7",
        ];
        assert_eq!(others, expected);
        assert_eq!(next(&journal), None);
    }

    #[test]
    fn what_no_journal_takes_goes_to_standard_error() {
        let (_folder, path, journal) = journal();
        let told = |what: &str| on_standard_error(&path, "info", || tracing::info!("{what}"));
        assert_eq!(told("taken"), "");
        assert!(next(&journal).unwrap().ends_with("MESSAGE=taken\n"));
        // The journal has ended.
        drop(journal);
        assert_eq!(told("refused"), "<6>refused\n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(told("without a socket"), "<6>without a socket\n");
        // Another journal has begun.
        let journal = UnixDatagram::bind(&path).unwrap();
        assert_eq!(told("taken again"), "");
        assert!(next(&journal).unwrap().ends_with("MESSAGE=taken again\n"));
        // The journal splits long lines; none is cut here.
        journal.set_nonblocking(true).unwrap();
        let long = "x".repeat(48 * 1024 + 1);
        assert_eq!(told(&long), format!("<6>{long}\n"));
        assert_eq!(told(&long[1..]), "");
        assert!(next(&journal).unwrap().ends_with("xx\n"));
    }

    // Threat model: A96
    #[test]
    fn a_full_socket_keeps_no_one_waiting_and_the_quota_counts_both_ways() {
        let (_folder, path, journal) = journal();
        let (done, end) = mpsc::channel();
        std::thread::spawn(move || {
            let said = on_standard_error(&path, "info", || {
                let filler = UnixDatagram::unbound().unwrap();
                filler.set_nonblocking(true).unwrap();
                for round in 0..150 {
                    if round == 3 {
                        while filler.send_to(b"filler", &path).is_ok() {}
                    }
                    tracing::info!(user = "alice", "told");
                }
            });
            done.send(said).unwrap();
        });
        let said = end.recv_timeout(Duration::from_secs(60)).unwrap();
        let taken = std::iter::from_fn(|| next(&journal));
        let taken = taken.filter(|datagram| datagram.contains("USHER_USER=alice"));
        assert_eq!(taken.count(), 3);
        assert_eq!(said.matches("<6>told user=\"alice\"").count(), 97, "{said}");
        let last = said.lines().last().unwrap();
        assert!(
            last.ends_with("(further lines like this one are left out for a minute)"),
            "{last}"
        );
    }

    #[test]
    fn the_filter_selects_events_by_their_place_in_the_program() {
        let path = Path::new("/nonexistent");
        let tell = || tracing::info!(name: events::SESSION_OPENED, "told");
        let told = |filter| on_standard_error(path, filter, tell);
        assert_eq!(told("off,usher_daemon::messages=info"), "<6>told\n");
        assert_eq!(told("info,usher_daemon=off"), "");
    }

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
