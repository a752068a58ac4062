//! Opens a session: the policy, a record of what was signed, the account, the table, the queue, the
//! first connection. Whatever can be refused is refused before the record; a session that is refused
//! afterwards also gets an end on record.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use usher_kernel::admission::{SessionError, SessionRecord};
use usher_local::clock::unix_time;
use usher_proto::chain::ChainTip;
use usher_proto::name::HostName;
use usher_proto::opening::{Authentication, Opening};
use usher_proto::refusal::Refusal;
use usher_proto::session_id::SessionId;
use usher_proto::session_request::Announcement;

use super::table::{agenda, room};
use super::teardown;
use super::verifier::{announce, close, kernel_failed, may_announce};
use crate::keeper::Keeper;
use crate::keeper::host::accounts::Account;
use crate::opening::{Claim, permitted};

/// The service of a session that may be opened now, and the session's end: never later than its key or
/// the policy permits.
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
    keeper.host.serves(service)?;
    Ok((service.id, expires))
}

/// The session of an account, from the result of [`may_open`].
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

/// A session to open.
pub struct Asked<'a> {
    /// Its id.
    pub session: SessionId,
    /// The host of the requesting channel.
    pub host: &'a HostName,
    /// The verifier's claim of what was signed, and the record of it.
    pub authentication: &'a Authentication,
    /// Its first connection.
    pub first: Option<Announcement>,
    /// The deadline.
    pub until: Instant,
}

/// Opens a session and announces its first connection, once the user's signature is on record and
/// matches the verifier's claim.
///
/// # Errors
/// The first check that fails. A session on record by then has its end there.
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
    // A refusal costs no room in the log, except for changes until the record is kept.
    let permitted = may_open(keeper, host, opening)?;
    if let Some(announcement) = &first {
        may_announce(keeper, permitted.0, host, &announcement.connection)?;
    }
    let account = keeper.host.accounts.by_name(user).await?;
    // A closed account opens no session at any service.
    timeout_at(until, keeper.host.identities.of(&account))
        .await
        .unwrap_or(Err(Refusal::KeeperUnavailable))?;
    let known = keeper.admission.session(&session).map_err(kernel_failed)?;
    if known.is_some() {
        return Err(Refusal::Replayed);
    }
    let record = session_record(host, opening, account.uid, permitted);
    room::exists(keeper, &record)?;
    let _permit = keeper.queues.permit((record.service, record.uid))?;
    let (kept, ()) = tokio::join!(
        keeper.recording.keep(authentication),
        prepare_queue(keeper, opening, &account)
    );
    kept?;
    // Both took time, so the present account and policy count. Nothing after this waits.
    let account = timeout_at(until, keeper.host.accounts.by_name(user)).await;
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
    let ready = configuration
        .checked
        .service(record.service)
        .ok_or(Refusal::UnknownService)
        .and_then(|service| keeper.queues.ensure(service, account))
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

/// Handles a session whose authentication is on record, and that could not be opened. It is entered as
/// ended, so that the authenticator cannot be used again, and its end is recorded, too.
fn end_unopened(keeper: &Keeper, session: &SessionId, record: SessionRecord, refusal: Refusal) {
    let record = SessionRecord {
        certified: false,
        ..record
    };
    match keeper.admission.insert_session(session, &record) {
        Ok(()) => {
            keeper.shares.keep(&record);
            teardown::mark(keeper, session, record, refusal);
        }
        // The same authenticator has opened it.
        Err(SessionError::Exists) => {}
        Err(error) => {
            tracing::error!(%session, %error, "a session that was not opened has no end on record");
        }
    }
}

/// Makes the user's queue while the recorder works, because both take about as long. The queue
/// admits no connection without a session. If it fails, opening the session reports it.
async fn prepare_queue(keeper: &Arc<Keeper>, opening: &Opening, account: &Account) {
    // Send the record first.
    tokio::task::yield_now().await;
    let configuration = keeper.configuration.get();
    let services = &configuration.checked.policy.services;
    if let Some(service) = services.get(&opening.statement.service)
        && let Err(refusal) = keeper.queues.ensure(service, account)
    {
        tracing::debug!(reason = refusal.name(), "no queue yet");
    }
}
