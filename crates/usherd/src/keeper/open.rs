//! Opening a session: what the policy says, a record of what was signed, the account, the table, the
//! queue, the first connection. What can be refused is before it is on record; what is refused after
//! that has ended there, too.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use usher_kernel::admission::{SessionError, SessionRecord};
use usher_local::clock::unix_time;
use usher_policy::ServedBy;
use usher_proto::chain::ChainTip;
use usher_proto::name::HostName;
use usher_proto::opening::{Authentication, Opening};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::Announcement;
use usher_system::sandbox::confines_files;

use super::accounts::Account;
use super::records::{announce, close, kernel_failed, may_announce};
use super::{Keeper, agenda, revocation, room, service_by_id};
use crate::opening::{Claim, permitted};

/// The service of a session that may be opened now, and when that ends: never later than its key or
/// than the policy lets it.
fn may_open(keeper: &Keeper, host: &HostName, opening: &Opening) -> Result<(u32, u64), Refusal> {
    let configuration = keeper.configuration.get();
    let hosts = &configuration.checked.policy.hosts;
    let claim = Claim {
        host,
        host_key: &hosts.get(host).ok_or(Refusal::HostNotPermitted)?.key,
        own_key: &keeper.host_key,
        now: unix_time(),
    };
    opening.statement.check(&claim.expectation())?;
    let (service, expires) = permitted(&configuration.checked, &claim, opening)?;
    // Nobody would ever serve the connection.
    match &service.served_by {
        ServedBy::Account(_) if keeper.fence.missing().is_some() => {
            return Err(Refusal::NoFence);
        }
        ServedBy::Program(program) if program.files.is_some() && !confines_files() => {
            return Err(Refusal::NoFileConfinement);
        }
        ServedBy::Account(_) | ServedBy::Program(_) => {}
    }
    keeper.destinations.serves(service)?;
    Ok((service.id, expires))
}

/// The session of an account, by what [`may_open`] says.
fn session_record(
    host: &HostName,
    opening: &Opening,
    uid: u32,
    (service, expires): (u32, u64),
) -> SessionRecord {
    let statement = &opening.statement;
    SessionRecord {
        uid,
        service,
        user: statement.user.clone(),
        host: host.clone(),
        tip: ChainTip {
            position: 0,
            value: statement.chain_anchor,
        },
        chain_length: statement.chain_length,
        chain_salt: statement.chain_salt,
        token_anchor: statement.token_anchor,
        key_fingerprint: opening.key_fingerprint,
        certified: opening.certificate.is_some(),
        host_number: statement.client_host_key.number(host),
        opened: unix_time(),
        expires,
        ended: None,
    }
}

/// A session that is to be opened.
pub struct Asked<'a> {
    /// By which it is called.
    pub session: SessionId,
    /// Whose channel it was asked on.
    pub host: &'a HostName,
    /// What the verifier says was signed, and the record of it.
    pub authentication: &'a Authentication,
    /// Its first connection.
    pub first: Option<Announcement>,
    /// Not after that.
    pub until: Instant,
}

/// Opens a session and announces its first connection, when what the user signed is on record, and is
/// what the verifier says.
///
/// # Errors
/// The first check that fails. What was on record by then has ended there.
pub async fn open(keeper: &Arc<Keeper>, asked: &Asked<'_>) -> Result<(), Refusal> {
    let Asked {
        session,
        host,
        authentication,
        first,
        until,
    } = *asked;
    let opening = &authentication.opening;
    let user = &opening.statement.user;
    // What is refused costs no room in the log, but for what has changed by the time it is kept.
    let permitted = may_open(keeper, host, opening)?;
    if let Some(announcement) = &first {
        may_announce(keeper, permitted.0, host, &announcement.connection)?;
    }
    let account = keeper.accounts.by_name(user).await?;
    // An account that the administrator has closed opens nothing, whoever serves it.
    timeout_at(until, keeper.identities.of(&account))
        .await
        .unwrap_or(Err(Refusal::KeeperUnavailable))?;
    let known = keeper.admission.session(&session).map_err(kernel_failed)?;
    if known.is_some() {
        return Err(Refusal::Replayed);
    }
    let record = session_record(host, opening, account.uid, permitted);
    room::exists(keeper, &record)?;
    let _seat = keeper.queues.seat((record.service, record.uid))?;
    let (kept, ()) = tokio::join!(
        keeper.recording.keep(authentication),
        prepare_queue(keeper, opening, &account)
    );
    kept?;
    // Both took their time: what counts is account and policy now. Nothing is waited for after it.
    let account = timeout_at(until, keeper.accounts.by_name(user)).await;
    let entered = account
        .unwrap_or(Err(Refusal::KeeperUnavailable))
        .and_then(|account| enter(keeper, asked, &account));
    if let Err(refusal) = entered {
        end_unopened(keeper, &session, record, refusal);
        return Err(refusal);
    }
    let announced = match first {
        Some(announcement) => announce(keeper, session, host, &announcement),
        None => Ok(()),
    };
    if announced.is_err() {
        close(keeper, &session, host);
    }
    announced
}

/// Enters a session whose authentication is on record.
fn enter(keeper: &Arc<Keeper>, asked: &Asked<'_>, account: &Account) -> Result<(), Refusal> {
    let Asked {
        session,
        host,
        authentication,
        until,
        ..
    } = *asked;
    let opening = &authentication.opening;
    if Instant::now() >= until {
        return Err(Refusal::KeeperUnavailable);
    }
    let permitted = may_open(keeper, host, opening)?;
    let record = session_record(host, opening, account.uid, permitted);
    let inserted = match &opening.certificate {
        Some(certificate) => {
            keeper
                .admission
                .insert_certified_session(&session, &record, certificate)
        }
        None => keeper.admission.insert_session(&session, &record),
    };
    inserted.map_err(|error| match error {
        SessionError::Exists => Refusal::Replayed,
        SessionError::Full => Refusal::SessionTableFull,
        SessionError::Kernel(error) => kernel_failed(error),
    })?;
    let configuration = keeper.configuration.get();
    let ready = service_by_id(&configuration.checked, record.service)
        .ok_or(Refusal::UnknownService)
        .and_then(|service| keeper.queues.ensure(keeper, service, account))
        .and_then(|()| room::make(keeper, &record));
    if let Err(refusal) = ready {
        keeper
            .admission
            .remove_session(&session)
            .map_err(kernel_failed)?;
        return Err(refusal);
    }
    keeper.shares.keep(&record);
    keeper.shares.enter(session, &record, record.opened);
    agenda::enter(keeper, session, &record);
    tracing::info!(%session, user = %record.user, uid = account.uid,
        service = %opening.statement.service, %host, "session opened");
    Ok(())
}

/// A session whose authentication is on record, and that could not be opened: it has ended before it
/// began, is remembered like others, so that the authenticator is of no further use, and its end is
/// put on record, too.
fn end_unopened(keeper: &Keeper, session: &SessionId, record: SessionRecord, refusal: Refusal) {
    let record = SessionRecord {
        certified: false,
        ..record
    };
    match keeper.admission.insert_session(session, &record) {
        Ok(()) => {
            keeper.shares.keep(&record);
            revocation::mark(keeper, session, record, refusal);
        }
        // It was opened by the same authenticator.
        Err(SessionError::Exists) => {}
        Err(error) => {
            tracing::error!(%session, %error, "a session that was not opened has no end on record");
        }
    }
}

/// Makes the user's queue while the recorder is at work: it takes as long, and admits nobody without
/// a session. When it cannot be made, opening the session says so.
async fn prepare_queue(keeper: &Arc<Keeper>, opening: &Opening, account: &Account) {
    // What is to be recorded is sent first.
    tokio::task::yield_now().await;
    let configuration = keeper.configuration.get();
    let services = &configuration.checked.policy.services;
    if let Some(service) = services.get(&opening.statement.service)
        && let Err(refusal) = keeper.queues.ensure(keeper, service, account)
    {
        tracing::debug!(reason = refusal.name(), "no queue yet");
    }
}
