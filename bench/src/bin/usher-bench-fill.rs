//! Fills a host's tables of sessions and tokens, by the same calls as the keeper. Run it inside a
//! lab's host, as its root, while its keeper is stopped; the keeper then takes up the entries, as
//! after a restart.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use usher_bench::crowd;
use usher_kernel::admission::{Admission, Limits, SessionRecord, TokenSession};
use usher_local::{keys, paths};
use usher_proto::chain::ChainTip;
use usher_proto::ssh_key::PublicKey;

const LIFETIME: Duration = Duration::from_secs(4 * 3600);

/// The key of the crowd. Each session must have it, because the keeper ends the others.
fn crowds_key() -> Result<PublicKey, Box<dyn Error>> {
    let path = format!("/etc/usher/users/{}/authorized_keys", crowd::name(0));
    Ok(PublicKey::from_openssh(&std::fs::read_to_string(path)?)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cgroup, limit, listeners, connections, sessions, users] = arguments.as_slice() else {
        return Err(
            "usage: CGROUP SESSION-LIMIT LISTENER-LIMIT CONNECTION-LIMIT SESSIONS USERS".into(),
        );
    };
    let limits = Limits {
        sessions: limit.parse()?,
        admissions: connections.parse()?,
        listeners: listeners.parse()?,
        tokens: limit.parse()?,
    };
    let admission = Admission::open(Path::new(paths::PIN_DIRECTORY), Path::new(cgroup), &limits)?;
    let key_fingerprint = keys::fingerprint(&crowds_key()?);
    let checked = usher_local::configuration::Configuration::load()?.checked;
    let host = crowd::HOST.parse()?;
    let identity = checked.identity_of(&host).ok_or("no host")?;
    let host_number = identity.number(&host);
    let service = usher_policy::service_id(&crowd::SERVICE.parse()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let (sessions, users): (u32, u32) = (sessions.parse()?, users.parse()?);
    for number in 0..sessions {
        let (user, session, chain) = (number % users, crowd::session(number), crowd::chain(number));
        let record = SessionRecord {
            uid: crowd::uid(user),
            service,
            user: crowd::name(user).parse()?,
            host: host.clone(),
            tip: ChainTip {
                position: 0,
                value: chain.anchor(),
            },
            chain_length: chain.length(),
            chain_salt: chain.salt(),
            token_anchor: [1; 11],
            key_fingerprint,
            certified: false,
            host_number,
            opened: now,
            expires: now + LIFETIME.as_secs(),
            ended: None,
        };
        admission.insert_session(&session, &record)?;
        admission.open_tokens(&TokenSession {
            session,
            service,
            uid: record.uid,
            host: 1,
            anchor: record.token_anchor,
            salt: record.chain_salt,
            length: record.chain_length,
            key: *session.as_bytes(),
            lifetime: LIFETIME,
        })?;
    }
    Ok(())
}
