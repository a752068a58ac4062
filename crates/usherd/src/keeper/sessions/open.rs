//! Opens a session, in this order: policy, account, room in the tables, record of the signed statement,
//! queue, first connection. All refusals that need no record come before the record; a session that is
//! refused after it also gets an end on record.

use tokio::time::{Instant, timeout_at};
use usher_base::HostName;
use usher_daemon::clock::unix_time;
use usher_daemon::events;
use usher_kernel::admission::SessionRecord;
use usher_policy::Style;
use usher_proto::chain::ChainTip;
use usher_proto::opening::{Authentication, Opening};
use usher_proto::refusal::Refusal;
use usher_proto::session_request::Announcement;

use super::Sessions;
use super::table::kernel_failed;
use crate::keeper::host::accounts::Account;
use crate::opening::{Claim, permitted};

/// A session that may be opened now.
#[derive(Clone, Copy)]
struct Permitted {
    service: u32,
    /// The number of the host's identity.
    host_number: u64,
    /// Its end, in seconds since 1970: never later than its key or the policy permits.
    expires: u64,
}

impl Sessions {
    /// Checks that a session may be opened now.
    fn may_open(&self, host: &HostName, opening: &Opening) -> Result<Permitted, Refusal> {
        let configuration = self.host.configuration.get();
        let checked = &configuration.checked;
        let known = checked.policy.hosts.get(host);
        let known = known.ok_or(Refusal::HostNotPermitted)?;
        let claim = Claim {
            host,
            host_keys: &known.keys,
            own_key: &self.own_key,
            now: unix_time(),
        };
        let named = &opening.statement.server_host_key;
        let expected = claim.expectation(&checked.policy, named);
        opening.statement.check(&expected)?;
        let (service, expires) = permitted(checked, &claim, opening)?;
        self.host.serves(service)?;
        Ok(Permitted {
            service: service.id,
            host_number: checked.identity(known).number(host),
            expires,
        })
    }

    /// Opens a session for the host of the requesting channel, and announces its first connection, once
    /// the user's signature is on record and matches the verifier's claim (`authentication` has both).
    ///
    /// # Errors
    /// The first check that fails; [`Refusal::KeeperUnavailable`] after the deadline. The log has the end of
    /// a session that was on record by then.
    pub async fn open(
        &self,
        host: &HostName,
        authentication: &Authentication,
        first: Option<Announcement>,
        until: Instant,
    ) -> Result<(), Refusal> {
        let session = authentication.opening.session();
        let opening = &authentication.opening;
        let user = &opening.statement.user;
        // Check the policy before the record is made, so that most refusals take no room in the log.
        let permitted = self.may_open(host, opening)?;
        if let Some(announcement) = &first {
            self.may_announce(permitted.service, host, &announcement.connection)?;
        }
        let account = self.host.accounts.by_name(user).await;
        let account = account.inspect_err(|refusal| {
            // The user may have other sessions, which must end if the account is gone.
            if *refusal == Refusal::NoLocalAccount {
                self.queues.suspect(user);
            }
        })?;
        // A closed account opens no session at any service.
        let asked = self.may_be_served(&account, host, first.as_ref(), permitted.service);
        timeout_at(until, asked)
            .await
            .unwrap_or(Err(Refusal::KeeperUnavailable))?;
        let known = self.table.session(&session)?;
        if known.is_some() {
            return Err(Refusal::Replayed);
        }
        let record = session_record(host, opening, account.uid, permitted);
        self.table.has_room(&record)?;
        let _permit = self.queues.permit((record.service, record.uid))?;
        let (kept, ()) = tokio::join!(
            self.recording.keep(authentication),
            self.prepare_queue(host, opening, &account)
        );
        kept?;
        // Recording took time, so the present account and policy count. Nothing after this waits.
        let account = timeout_at(until, self.host.accounts.by_name(user)).await;
        let entered = account
            .unwrap_or(Err(Refusal::KeeperUnavailable))
            .and_then(|account| self.enter(host, opening, &account, until));
        if let Err(refusal) = entered {
            self.table.enter_ended(&session, record, refusal);
            return Err(refusal);
        }
        let announced = match first {
            Some(announcement) => self.announce(session, host, &announcement),
            None => Ok(()),
        };
        if announced.is_err() {
            self.abandon(&session, host);
        }
        announced
    }

    /// Asks whether PAM permits the account from the address of the host's first connection. Without a first
    /// connection, one permitted address of the host suffices, because PAM is asked again before a process is
    /// started. A shared service starts no process for the user, so there PAM must permit all addresses.
    async fn may_be_served(
        &self,
        account: &Account,
        host: &HostName,
        first: Option<&Announcement>,
        service: u32,
    ) -> Result<(), Refusal> {
        let configuration = self.host.configuration.get();
        let service = configuration.checked.service(service);
        let is_shared = service.is_some_and(|service| service.style == Style::Shared);
        let known = &configuration.checked.policy.hosts;
        let addresses = match first {
            Some(announcement) => vec![announcement.connection.client.ip()],
            None => known
                .get(host)
                .map_or_else(Vec::new, |host| host.addresses.clone()),
        };
        let answers = self.host.identities.of_each(account, &addresses).await;
        let (permitted, refused): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|(_, answer)| answer.is_ok());
        let refusal = refused.into_iter().find_map(|(_, answer)| answer.err());
        match refusal {
            None if permitted.is_empty() => Err(Refusal::HostNotPermitted),
            Some(refusal) if is_shared || permitted.is_empty() => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Enters a session whose authentication is on record.
    fn enter(
        &self,
        host: &HostName,
        opening: &Opening,
        account: &Account,
        until: Instant,
    ) -> Result<(), Refusal> {
        let session = opening.session();
        if Instant::now() >= until {
            return Err(Refusal::KeeperUnavailable);
        }
        let permitted = self.may_open(host, opening)?;
        let record = session_record(host, opening, account.uid, permitted);
        self.table
            .insert(&session, &record, opening.certificate.as_ref())?;
        let configuration = self.host.configuration.get();
        let ready = configuration
            .checked
            .service(record.service)
            .ok_or(Refusal::UnknownService)
            .and_then(|service| self.queues.ensure(service, account, host))
            .and_then(|()| self.table.make_room(&record));
        if let Err(refusal) = ready {
            self.host
                .admission
                .remove_session(&session)
                .map_err(kernel_failed)?;
            return Err(refusal);
        }
        self.table.enter(session, &record);
        tracing::info!(name: events::SESSION_OPENED, %session, user = %record.user, uid = account.uid,
            service = %opening.statement.service, %host, "session opened");
        Ok(())
    }

    /// Makes the user's queue while the recorder works, because both take about as long. The queue admits no
    /// connection without a session. After a failure [`Sessions::enter`] tries again and reports it.
    async fn prepare_queue(&self, host: &HostName, opening: &Opening, account: &Account) {
        // Send the record first.
        tokio::task::yield_now().await;
        let configuration = self.host.configuration.get();
        let services = &configuration.checked.policy.services;
        if let Some(service) = services.get(&opening.statement.service)
            && let Err(refusal) = self.queues.ensure(service, account, host)
        {
            tracing::debug!(reason = refusal.name(), "no queue yet");
        }
    }
}

/// The session of an account, from the result of [`Sessions::may_open`].
fn session_record(
    host: &HostName,
    opening: &Opening,
    uid: u32,
    permitted: Permitted,
) -> SessionRecord {
    let statement = &opening.statement;
    SessionRecord {
        uid,
        service: permitted.service,
        user: statement.user.clone(),
        host: host.clone(),
        tip: ChainTip::at_anchor(statement.chain_anchor),
        chain_length: statement.chain_length,
        chain_salt: statement.chain_salt,
        token_anchor: statement.token_anchor,
        key_fingerprint: opening.key_fingerprint,
        certified: opening.certificate.is_some(),
        host_number: permitted.host_number,
        opened: unix_time(),
        expires: permitted.expires,
        ended: None,
    }
}
