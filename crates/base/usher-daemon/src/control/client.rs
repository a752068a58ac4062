//! The command line's side of control requests.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{AnsweredBy, HEARD, Reply, Request};
use crate::packet::{connect_within, peer};
use crate::role::{HasRole, Role};

/// How long a daemon may take to confirm a request. A daemon does one thing after the other, and the longest
/// takes a few seconds.
const HEARING: Duration = Duration::from_secs(10);
/// How long the whole answer may take after the confirmation. Most answers take a second; the first load of a
/// module takes more than a minute in an emulated machine with others beside it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A daemon that has used this much processor time since the last check is at work. In hundredths of a second
/// (USER_HZ of proc(5)).
const AT_WORK: u64 = 10;
/// How long a request waits for a daemon that is at work, at most.
const AT_WORK_FOR: Duration = Duration::from_secs(1200);

static WAITING: OnceLock<fn(&'static str, Duration)> = OnceLock::new();

/// Sets the function that is called when a request goes on waiting because its daemon is at work. It gets the
/// role, and the time that the request has waited.
pub fn tell_of_waiting(tell: fn(&'static str, Duration)) {
    let _ = WAITING.set(tell);
}

/// A failed request to a daemon. The first field is the daemon's role.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nothing answers at the path of the daemon's socket.
    #[error(
        "the {0} does not run on this host (nothing answers at {1}); \
         start it with `systemctl start usher-{0}`"
    )]
    NotRunning(&'static str, String),
    /// The caller may not ask.
    #[error("only root may ask the {0}; run this with sudo")]
    NotPermitted(&'static str),
    /// The daemon runs, but has not answered for this long.
    #[error(
        "the {0} has not answered for {after} s: it hangs, or was stopped (SIGSTOP). Its watchdog \
         restarts it in time; `systemctl kill -s KILL usher-{0}` restarts it now",
        after = .1.as_secs()
    )]
    Hangs(&'static str, Duration),
    /// The exchange broke off.
    #[error("the {0} did not answer: {1}; look at its log (journalctl -u usher-{0})")]
    Broken(&'static str, io::Error),
    /// The answer has another form than expected.
    #[error("cannot understand the {0}'s answer ({1}); are `usher` and the {0} of one version?")]
    NotUnderstood(&'static str, serde_json::Error),
    /// The daemon could not carry the request out, for this reason.
    #[error("the {0} says: {1}")]
    Refused(&'static str, String),
}

/// Asks a daemon.
///
/// # Errors
/// See [`ControlError`].
pub fn ask_daemon<R: HasRole, Q: AnsweredBy<R>>(
    _: R,
    request: &Q,
) -> Result<Q::Answer, ControlError> {
    ask_role(R::ROLE, request)
}

/// Asks the roles among these that answer the request, one after the other. A role is asked when its item is
/// taken.
///
/// # Errors
/// Each item: as [`ask_daemon`].
pub fn ask_each<Q: Request>(
    roles: &'static [&'static Role],
    request: &Q,
) -> impl Iterator<Item = (&'static Role, Result<Q::Answer, ControlError>)> {
    let roles = roles.iter().filter(|role| role.answers.contains(&Q::NAME));
    roles.map(move |role| (*role, ask_role(role, request)))
}

fn ask_role<Q: Request>(role: &'static Role, request: &Q) -> Result<Q::Answer, ControlError> {
    let path = role.control_socket();
    let limit = role.largest_answer;
    let role = role.name;
    let stream = connect_within(path.as_ref(), HEARING).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ControlError::NotRunning(role, path)
        }
        io::ErrorKind::PermissionDenied => ControlError::NotPermitted(role),
        _ => unanswered(role, HEARING)(error),
    })?;
    let daemon = peer(stream.as_fd()).ok();
    let work = || processor_time(daemon.as_ref()?.pid);
    let answer = exchange(role, stream, request, limit, (HEARING, PATIENCE), work)?;
    match serde_json::from_slice(&answer) {
        Ok(Reply::Done(answer)) => Ok(answer),
        Ok(Reply::Failed { reason }) => Err(ControlError::Refused(role, reason)),
        Err(error) => Err(ControlError::NotUnderstood(role, error)),
    }
}

/// The processor time that a process has used, in hundredths of a second; none if that cannot be read.
fn processor_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process's name stands before these fields, and may contain anything, also `)`.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// The error of an answer that is not complete after so long, or of an exchange that broke off.
fn unanswered(role: &'static str, after: Duration) -> impl Fn(io::Error) -> ControlError {
    move |error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ControlError::Hangs(role, after),
        _ => ControlError::Broken(role, error),
    }
}

/// Sends a request and returns the line of its answer. The daemon has `hearing` to confirm the request,
/// `patience` after that for its whole answer, and then as long as its use of the processor shows that it is
/// at work: loading a module takes minutes on a busy machine.
fn exchange<Q: Request>(
    role: &'static str,
    mut stream: UnixStream,
    request: &Q,
    limit: usize,
    (hearing, patience): (Duration, Duration),
    work: impl Fn() -> Option<u64>,
) -> Result<Vec<u8>, ControlError> {
    let broken = |error| ControlError::Broken(role, error);
    stream.set_write_timeout(Some(hearing)).map_err(broken)?;
    let line = serde_json::to_value(request);
    let mut line = line.map_err(|error| broken(error.into()))?;
    line["request"] = Q::NAME.into();
    let line = format!("{line}\n");
    for part in [line.as_bytes(), request.attached()] {
        stream.write_all(part).map_err(unanswered(role, hearing))?;
    }
    let (mut answer, mut heard) = (Vec::new(), false);
    let begun = Instant::now();
    let (mut after, mut deadline) = (hearing, begun + hearing);
    let mut worked = work();
    let mut chunk = vec![0; 64 * 1024];
    while answer.last() != Some(&b'\n') {
        // The limit holds for the whole answer, however many parts it comes in.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let now = work();
            let is_at_work = worked
                .zip(now)
                .is_some_and(|(before, now)| now >= before + AT_WORK);
            if !is_at_work || begun.elapsed() >= AT_WORK_FOR {
                return Err(ControlError::Hangs(role, after));
            }
            worked = now;
            after += hearing;
            deadline = Instant::now() + hearing;
            if let Some(tell) = WAITING.get() {
                tell(role, begun.elapsed());
            }
            continue;
        }
        stream.set_read_timeout(Some(left)).map_err(broken)?;
        let mut received = match stream.read(&mut chunk) {
            Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => &chunk[..length],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The deadline has come.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                continue;
            }
            Err(error) => return Err(unanswered(role, after)(error)),
        };
        if !heard {
            heard = true;
            (after, deadline) = (patience, Instant::now() + patience);
            worked = work();
            received = received.strip_prefix(&[HEARD]).unwrap_or(received);
        }
        answer.extend_from_slice(received);
        if answer.len() > limit {
            return Err(broken(io::Error::other("the answer does not end")));
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Status;

    #[derive(Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
    struct RecentView {
        ended: Vec<String>,
    }

    const ANSWER: &[u8] = b"{\"answer\":\"failed\",\"reason\":\"no\"}\n";

    /// The outcome with a daemon that sends these bytes and keeps its end open.
    fn asked(
        answer: &[u8],
        limit: usize,
        times: (Duration, Duration),
    ) -> Result<Vec<u8>, ControlError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(answer).unwrap();
        let outcome = exchange("keeper", ours, &Status {}, limit, times, || None);
        drop(theirs);
        outcome
    }

    #[test]
    fn a_daemon_that_hangs_differs_from_a_busy_one() {
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
        let after = |said: &[u8], times| match asked(said, 1 << 10, times) {
            Err(ControlError::Hangs(_, after)) => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(b"", (short, long)), short);
        assert_eq!(after(b"\n", (long, short)), short);
        assert_eq!(after(b"\n{\"answer\"", (long, short)), short);
        let answer = [&[HEARD], ANSWER].concat();
        assert_eq!(asked(&answer, 1 << 10, (long, long)).unwrap(), ANSWER);
    }

    #[test]
    fn a_daemon_at_work_is_waited_for_and_a_stopped_one_is_not() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let times = (Duration::from_millis(1), Duration::from_secs(3600));
        let looks = AtomicU64::new(0);
        // The daemon answers once the check has found it at work three times.
        let asked = |is_at_work: bool| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            looks.store(0, Ordering::Relaxed);
            let work = || {
                let look = looks.fetch_add(1, Ordering::Relaxed);
                if look == 3 {
                    (&theirs).write_all(&[&[HEARD], ANSWER].concat()).unwrap();
                }
                Some(look * if is_at_work { AT_WORK } else { AT_WORK - 1 })
            };
            let outcome = exchange("labeller", ours, &Status {}, 1 << 10, times, work);
            theirs.flush().unwrap();
            outcome
        };
        assert_eq!(asked(true).unwrap(), ANSWER);
        assert!(looks.load(Ordering::Relaxed) > 3);
        assert!(matches!(asked(false), Err(ControlError::Hangs(..))));
        assert_eq!(looks.load(Ordering::Relaxed), 2);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(processor_time(own).is_some());
    }

    #[test]
    fn an_answer_has_a_limit_and_up_to_it_is_taken() {
        let times = (HEARING, PATIENCE);
        assert_eq!(asked(ANSWER, ANSWER.len(), times).unwrap(), ANSWER);
        asked(ANSWER, ANSWER.len() - 1, times).unwrap_err();
        // An answer that ends early is an error.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&ANSWER[..4]).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        match exchange("keeper", ours, &Status {}, ANSWER.len(), times, || None) {
            Err(ControlError::Broken(_, error)) => {
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_says_done_or_failed() {
        let done = Reply::Done(RecentView::default());
        let line = serde_json::to_string(&done).unwrap();
        assert_eq!(line, r#"{"answer":"done","ended":[]}"#);
        assert_eq!(
            serde_json::from_str::<Reply<RecentView>>(&line).unwrap(),
            done
        );
        let failed = Reply::Failed {
            reason: "no".into(),
        };
        assert_eq!(
            serde_json::from_slice::<Reply<RecentView>>(ANSWER).unwrap(),
            failed
        );
    }
}
