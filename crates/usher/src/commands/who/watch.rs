//! `usher who --watch`: what comes and goes, a line each.
//!
//! The keeper and the verifier are asked again and again, and their answers are compared. Changes that come
//! and go between two answers are not seen; the log has every session.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use usher_base::{HostName, ServiceName, UserName};
use usher_daemon::clock::unix_time;
use usher_daemon::control::{ControlError, Status, ask_daemon};
use usher_local::requests::{EndedView, Recent, SessionView, TroubleView, Who, WhoView};
use usher_local::roles;

use super::Filter;
use crate::commands::log::utc;
use crate::failure::Failure;
use crate::output::{Output, escaped};

/// The shortest pause between two questions.
const REST: Duration = Duration::from_secs(1);
/// The pause is this many times as long as the answers took. So the watch takes at most 5 % of the daemons'
/// time, however many sessions they have.
const REST_FOR_WORK: u32 = 20;
/// The longest pause after a missing answer, so that the next answer of a keeper which hung is soon seen.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// A change, and when it was seen.
#[derive(Debug, Serialize)]
struct Change {
    /// When it was seen, in seconds since 1970.
    time: u64,
    #[serde(flatten)]
    what: What,
}

/// The session that a change is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Whose {
    /// The remote user.
    user: UserName,
    /// The host that the user comes from.
    host: HostName,
    /// The service.
    service: ServiceName,
    /// The id of the session, in hexadecimal.
    session: String,
}

/// One change.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum What {
    /// A session was opened, or was open when the watch began.
    SessionOpened { whose: Whose },
    /// A session has ended, for this reason if the keeper knows one.
    SessionEnded {
        whose: Whose,
        reason: Option<String>,
        text: Option<String>,
    },
    /// A connection of the session is established.
    Connected { whose: Whose, client: String },
    /// A connection of the session has ended.
    Disconnected { whose: Whose, client: String },
    /// So many more sessions were refused for this reason. With a filter it is not shown, because no user is known.
    Refused { reason: String, sessions: u64 },
    /// A service could not serve a user.
    NotServed {
        service: ServiceName,
        user: UserName,
        text: String,
    },
    /// The keeper does not answer. It is asked again.
    KeeperLost { text: String },
    /// The keeper answers again.
    KeeperBack,
}

/// A live session.
#[derive(Debug)]
struct Live {
    whose: Whose,
    /// Addresses and ports of its established connections, at their clients.
    clients: BTreeSet<String>,
}

/// The state when the daemons were asked.
#[derive(Debug, Default)]
struct Seen {
    /// The live sessions by their ids.
    sessions: BTreeMap<String, Live>,
    troubles: BTreeMap<ServiceName, TroubleView>,
    /// Refused sessions by reason, since the verifier's start; none with a filter, or before a verifier has
    /// answered.
    refused: Option<BTreeMap<String, u64>>,
}

/// Prints changes until it is interrupted, or nobody reads them.
///
/// # Errors
/// When the keeper does not answer the first question, or the output cannot be written.
pub fn watch(output: &Output, filter: &Filter) -> Result<(), Failure> {
    let mut asked = Instant::now();
    let mut seen = ask(filter, &Seen::default())?;
    let mut changes = seen.at_the_begin();
    let mut lost = false;
    while print(output, unix_time(), changes)? {
        let longest = if lost { LONGEST_REST } else { Duration::MAX };
        sleep((asked.elapsed() * REST_FOR_WORK).clamp(REST, longest));
        asked = Instant::now();
        changes = match ask(filter, &seen) {
            Ok(now) => {
                let back = std::mem::take(&mut lost).then_some(What::KeeperBack);
                let between = now.since(&seen, || ended(filter));
                seen = now;
                back.into_iter().chain(between).collect()
            }
            Err(_) if lost => Vec::new(),
            Err(error) => {
                lost = true;
                let text = error.to_string();
                vec![What::KeeperLost { text }]
            }
        };
    }
    Ok(())
}

/// The present state, with the former counts where the verifier does not answer.
fn ask(filter: &Filter, former: &Seen) -> Result<Seen, ControlError> {
    let mut live = ask_daemon(roles::Keeper, &Who {})?;
    filter.of_live(&mut live);
    if !filter.is_empty() {
        return Ok(Seen::new(live, None));
    }
    // Without a verifier no session is refused.
    let counts = ask_daemon(roles::Verifier, &Status {}).map(|status| refused(status.numbers));
    let refused = counts.ok().or_else(|| former.refused.clone());
    Ok(Seen::new(live, refused))
}

/// The ends that the keeper remembers. If the keeper does not answer, the reasons are missing, and the next
/// question reports that it is lost.
fn ended(filter: &Filter) -> Vec<EndedView> {
    let mut recent = ask_daemon(roles::Keeper, &Recent {}).unwrap_or_default();
    filter.of_recent(&mut recent);
    recent.ended
}

/// The counts of refused sessions among the verifier's numbers.
fn refused(numbers: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let reasons = numbers.into_iter().filter_map(|(name, count)| {
        let reason = name.strip_prefix("refused_")?;
        Some((reason.to_owned(), count))
    });
    reasons.collect()
}

impl Seen {
    fn new(live: WhoView, refused: Option<BTreeMap<String, u64>>) -> Self {
        let troubles = live.troubles.into_iter();
        Self {
            sessions: live.sessions.into_iter().map(Live::of).collect(),
            troubles: troubles.map(|one| (one.service.clone(), one)).collect(),
            refused,
        }
    }

    /// The sessions and connections at the beginning. Earlier failures are left out.
    fn at_the_begin(&self) -> Vec<What> {
        let before = Self {
            sessions: BTreeMap::new(),
            troubles: self.troubles.clone(),
            refused: self.refused.clone(),
        };
        self.since(&before, Vec::new)
    }

    /// The changes since `before`. `ended` is called only after a session has been seen to be gone, so it has
    /// every end.
    fn since(&self, before: &Self, ended: impl FnOnce() -> Vec<EndedView>) -> Vec<What> {
        let none = BTreeSet::new();
        let mut changes = Vec::new();
        let gone = |id: &String| !self.sessions.contains_key(id);
        let ends = if before.sessions.keys().any(gone) {
            ended()
        } else {
            Vec::new()
        };
        let ends: BTreeMap<&str, &EndedView> =
            ends.iter().map(|end| (end.session.as_str(), end)).collect();
        for (id, Live { whose, clients }) in &before.sessions {
            let here = self.sessions.get(id);
            let left = clients.difference(here.map_or(&none, |live| &live.clients));
            changes.extend(left.map(|client| What::Disconnected {
                whose: whose.clone(),
                client: client.clone(),
            }));
            if here.is_none() {
                let end = ends.get(id.as_str());
                changes.push(What::SessionEnded {
                    whose: whose.clone(),
                    reason: end.map(|end| end.reason.clone()),
                    text: end.map(|end| end.text.clone()),
                });
            }
        }
        for (id, Live { whose, clients }) in &self.sessions {
            let former = before.sessions.get(id);
            if former.is_none() {
                changes.push(What::SessionOpened {
                    whose: whose.clone(),
                });
            }
            let came = clients.difference(former.map_or(&none, |live| &live.clients));
            changes.extend(came.map(|client| What::Connected {
                whose: whose.clone(),
                client: client.clone(),
            }));
        }
        for (service, trouble) in &self.troubles {
            if failures(trouble) > before.troubles.get(service).map_or(0, failures) {
                changes.push(What::NotServed {
                    service: service.clone(),
                    user: trouble.user.clone(),
                    text: trouble.reason.clone(),
                });
            }
        }
        // Refusals from before the verifier's first answer are left out.
        if let (Some(before), Some(now)) = (&before.refused, &self.refused) {
            changes.extend(more_refused(before, now));
        }
        changes
    }
}

/// The counts that have grown. A verifier that was started again counts from zero.
fn more_refused(
    before: &BTreeMap<String, u64>,
    now: &BTreeMap<String, u64>,
) -> impl Iterator<Item = What> {
    now.iter().filter_map(|(reason, count)| {
        let former = before.get(reason).copied().unwrap_or(0);
        let sessions = count.checked_sub(former).unwrap_or(*count);
        let reason = reason.clone();
        (sessions > 0).then_some(What::Refused { reason, sessions })
    })
}

fn failures(trouble: &TroubleView) -> u64 {
    trouble.failed_starts + trouble.refused_connections
}

impl Live {
    /// The session's id, and the session.
    fn of(view: SessionView) -> (String, Self) {
        let established = view
            .connections
            .into_iter()
            .filter(|one| one.seconds.is_some());
        let live = Self {
            clients: established.map(|one| one.client).collect(),
            whose: Whose {
                user: view.user,
                host: view.host,
                service: view.service,
                session: view.session.clone(),
            },
        };
        (view.session, live)
    }
}

/// Prints the changes, seen at this time. Returns whether somebody reads them.
fn print(output: &Output, time: u64, changes: Vec<What>) -> Result<bool, Failure> {
    let mut lines = String::new();
    for what in changes {
        if output.json {
            // JSON of `usher who --watch`: one object a line, [`Change`].
            lines += &serde_json::to_string(&Change { time, what })
                .map_err(|error| unwritten(error.into()))?;
        } else {
            lines += &escaped(&format!("{}  {}", utc(time), text(&what)));
        }
        lines.push('\n');
    }
    match io::stdout().write_all(lines.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(unwritten(error)),
    }
}

fn unwritten(error: io::Error) -> Failure {
    let what = "cannot write";
    Failure::Attempt { what, error }
}

fn text(what: &What) -> String {
    match what {
        What::SessionOpened { whose } => {
            format!("open          {whose}, session {}", whose.session)
        }
        What::SessionEnded { whose, text, .. } => {
            let why = text
                .as_ref()
                .map_or(String::new(), |text| format!(": {text}"));
            format!("ended         {whose}, session {}{why}", whose.session)
        }
        What::Connected { whose, client } => format!("connected     {whose}, from {client}"),
        What::Disconnected { whose, client } => format!("disconnected  {whose}, from {client}"),
        What::Refused { reason, sessions } => format!("refused       {sessions}: {reason}"),
        What::NotServed {
            service,
            user,
            text,
        } => format!("not served    {user} at {service}: {text}"),
        What::KeeperLost { text } => format!("no answer     {text}; asking again"),
        What::KeeperBack => "answer        the keeper answers again".to_owned(),
    }
}

impl Display for Whose {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            user,
            host,
            service,
            ..
        } = self;
        write!(formatter, "{user} from {host} at {service}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = r#"{"session": "3f", "user": "alice", "host": "laptop", "service": "imap",
        "uid": 2001, "opened": 1, "expires": 9, "used": 1, "chain_length": 8, "connections": []}"#;
    const CONNECTION: &str = r#"{"client": "10.0.0.2:7", "server": "10.0.0.1:143",
        "state": "established", "seconds": 0.5}"#;

    fn session() -> SessionView {
        serde_json::from_str(SESSION).expect("a session")
    }

    fn with_connection(state: &str, seconds: Option<f64>) -> SessionView {
        let mut connection: usher_local::requests::ConnectionView =
            serde_json::from_str(CONNECTION).expect("a connection");
        (connection.state, connection.seconds) = (state.to_owned(), seconds);
        let connections = vec![connection];
        SessionView {
            connections,
            ..session()
        }
    }

    fn seen(sessions: Vec<SessionView>) -> Seen {
        let view = WhoView {
            sessions,
            ..WhoView::default()
        };
        Seen::new(view, None)
    }

    fn trouble(failed_starts: u64) -> Seen {
        let text = format!(
            r#"{{"service": "imap", "failed_starts": {failed_starts}, "refused_connections": 0,
            "user": "bob", "reason": "no program", "at": 1, "over": false}}"#
        );
        let view = WhoView {
            troubles: vec![serde_json::from_str(&text).expect("a trouble")],
            ..WhoView::default()
        };
        Seen::new(view, None)
    }

    fn refused_so_often(count: u64) -> Seen {
        let numbers = [
            ("refused_unknown_key".to_owned(), count),
            ("channels".to_owned(), 3),
        ];
        Seen::new(WhoView::default(), Some(refused(numbers.into())))
    }

    fn texts(changes: &[What]) -> Vec<String> {
        changes.iter().map(text).collect()
    }

    fn nobody_asked() -> Vec<EndedView> {
        panic!("the ends were asked for, and no session has ended");
    }

    const OPEN: &str = "open          alice from laptop at imap, session 3f";
    const CONNECTED: &str = "connected     alice from laptop at imap, from 10.0.0.2:7";
    const DISCONNECTED: &str = "disconnected  alice from laptop at imap, from 10.0.0.2:7";

    #[test]
    fn sessions_and_connections_come_and_go() {
        let (none, one) = (seen(vec![]), seen(vec![session()]));
        let connected = seen(vec![with_connection("established", Some(0.5))]);
        assert_eq!(texts(&connected.at_the_begin()), [OPEN, CONNECTED]);
        assert_eq!(texts(&one.since(&none, nobody_asked)), [OPEN]);
        assert_eq!(texts(&connected.since(&one, nobody_asked)), [CONNECTED]);
        assert_eq!(texts(&one.since(&connected, nobody_asked)), [DISCONNECTED]);
        assert_eq!(texts(&one.since(&one, nobody_asked)), [""; 0]);
        // An announced connection may never come.
        let announced = seen(vec![with_connection("announced", None)]);
        assert_eq!(texts(&announced.since(&one, nobody_asked)), [""; 0]);
    }

    #[test]
    fn an_end_has_its_reason_where_the_keeper_knows_it() {
        let connected = seen(vec![with_connection("established", Some(0.5))]);
        let none = seen(vec![]);
        let end = |session: &str| EndedView {
            session: session.to_owned(),
            user: "alice".parse().expect("a name"),
            host: "laptop".parse().expect("a name"),
            service: "imap".parse().expect("a name"),
            uid: 2001,
            opened: 1,
            ended: 2,
            reason: "disabled_user".to_owned(),
            text: "the user is disabled".to_owned(),
        };
        let ended = "ended         alice from laptop at imap, session 3f";
        let why = format!("{ended}: the user is disabled");
        let of_others = none.since(&connected, || vec![end("4a")]);
        assert_eq!(texts(&of_others), [DISCONNECTED, ended]);
        let its_own = none.since(&connected, || vec![end("4a"), end("3f")]);
        assert_eq!(texts(&its_own), [DISCONNECTED, why.as_str()]);
    }

    #[test]
    fn refusals_and_failures_are_news_once() {
        let (three, five) = (refused_so_often(3), refused_so_often(5));
        assert_eq!(texts(&five.at_the_begin()), [""; 0]);
        let two = "refused       2: unknown_key";
        assert_eq!(texts(&five.since(&three, nobody_asked)), [two]);
        assert_eq!(texts(&five.since(&five, nobody_asked)), [""; 0]);
        // Refusals from before the first question are left out, too.
        assert_eq!(texts(&five.since(&seen(vec![]), nobody_asked)), [""; 0]);
        // The verifier was started again.
        let since_then = "refused       3: unknown_key";
        assert_eq!(texts(&three.since(&five, nobody_asked)), [since_then]);

        assert_eq!(texts(&trouble(2).at_the_begin()), [""; 0]);
        let failed = "not served    bob at imap: no program";
        assert_eq!(
            texts(&trouble(2).since(&trouble(1), nobody_asked)),
            [failed]
        );
        assert_eq!(texts(&trouble(2).since(&trouble(2), nobody_asked)), [""; 0]);
    }
}
