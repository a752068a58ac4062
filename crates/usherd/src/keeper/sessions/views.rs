//! Live state for `usher who` and `usher doctor`.

use std::collections::HashMap;

use usher_bpf::Counted;
use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, AdmissionState, SessionRecord};
use usher_kernel::ownership::Refusals;
use usher_local::checked::Checked;
use usher_local::control::{
    CertificateView, ConnectionView, EndingView, SessionView, StatusView, WhoView, WorkerView,
};
use usher_local::roles;
use usher_policy::ServedBy;
use usher_proto::session_id::SessionId;
use usher_proto::ssh_key::Fingerprint;

use super::teardown::Entry;
use crate::keeper::Keeper;

/// Sessions with their connections, and workers.
///
/// # Errors
/// When a table cannot be read.
pub fn view(keeper: &Keeper) -> Result<WhoView, KernelError> {
    let rows = keeper.admission.admissions()?;
    let rows = by_session(&rows);
    let tokens = token_positions(keeper)?;
    let configuration = keeper.configuration.get();
    let mut sessions: Vec<SessionView> = keeper
        .admission
        .sessions()?
        .iter()
        // A closed session is shown while its connections live.
        .filter(|(session, record)| record.ended.is_none() || rows.contains_key(session))
        .map(|(session, record)| {
            session_view(
                keeper,
                &configuration.checked,
                session,
                record,
                &rows,
                &tokens,
            )
        })
        .collect();
    sessions.sort_by(|a, b| (a.opened, &a.session).cmp(&(b.opened, &b.session)));
    let mut workers: Vec<WorkerView> = keeper
        .queues
        .list()
        .iter()
        .flat_map(|queue| {
            queue.workers().into_iter().map(|worker| WorkerView {
                service: queue.service.clone(),
                user: queue.account.name.clone(),
                uid: queue.account.uid,
                pid: worker.pid,
                seconds: worker.since.elapsed().as_secs_f64(),
            })
        })
        .collect();
    workers.sort_by_key(|worker| worker.pid);
    Ok(WhoView {
        sessions,
        workers,
        troubles: keeper.queues.troubles().view(&configuration.checked),
    })
}

/// The number of used tokens of each session that has any.
///
/// # Errors
/// When the table cannot be read.
pub fn token_positions(keeper: &Keeper) -> Result<HashMap<SessionId, u32>, KernelError> {
    let slots = keeper.admission.tokens()?;
    Ok(slots
        .into_iter()
        .map(|row| (row.session, row.position))
        .collect())
}

/// Connections by their sessions.
fn by_session(rows: &[AdmissionRow]) -> HashMap<SessionId, Vec<&AdmissionRow>> {
    let mut sessions: HashMap<SessionId, Vec<&AdmissionRow>> = HashMap::new();
    for row in rows {
        sessions.entry(row.session).or_default().push(row);
    }
    sessions
}

/// One session, with its service's name by `checked`.
pub fn session_view(
    keeper: &Keeper,
    checked: &Checked,
    session: &SessionId,
    record: &SessionRecord,
    rows: &HashMap<SessionId, Vec<&AdmissionRow>>,
    tokens: &HashMap<SessionId, u32>,
) -> SessionView {
    SessionView {
        session: session.to_string(),
        user: record.user.clone(),
        host: record.host.clone(),
        service: checked.service_name(record.service),
        uid: record.uid,
        key: Fingerprint::Sha256(record.key_fingerprint).to_string(),
        certificate: certificate_view(keeper, session, record),
        opened: record.opened,
        expires: record.expires,
        used: record.tip.position,
        tokens: tokens.get(session).copied(),
        chain_length: record.chain_length,
        connections: rows
            .get(session)
            .into_iter()
            .flatten()
            .map(|row| connection_view(row))
            .collect(),
    }
}

/// Ending sessions, each with its reason, oldest first. Services have their names by `checked`.
pub fn ending_views(
    keeper: &Keeper,
    checked: &Checked,
    ending: &[Entry],
    rows: &[AdmissionRow],
) -> Vec<EndingView> {
    let tokens = token_positions(keeper).unwrap_or_else(|error| {
        tracing::error!(%error, "reading the table of tokens");
        HashMap::new()
    });
    let rows = by_session(rows);
    let mut views: Vec<EndingView> = ending
        .iter()
        .map(|entry| EndingView {
            session: session_view(
                keeper,
                checked,
                &entry.session,
                &entry.record,
                &rows,
                &tokens,
            ),
            reason: entry.reason.name().into(),
            text: entry.reason.to_string(),
        })
        .collect();
    views.sort_by(
        |EndingView { session: a, .. }, EndingView { session: b, .. }| {
            (a.opened, &a.session).cmp(&(b.opened, &b.session))
        },
    );
    views
}

/// One connection.
pub fn connection_view(row: &AdmissionRow) -> ConnectionView {
    ConnectionView {
        client: row.connection.client.to_string(),
        server: row.connection.server.to_string(),
        state: state_name(row.state).into(),
        seconds: row.established.map(|age| age.as_secs_f64()),
    }
}

fn certificate_view(
    keeper: &Keeper,
    session: &SessionId,
    record: &SessionRecord,
) -> Option<CertificateView> {
    if !record.certified {
        return None;
    }
    match keeper.admission.certificate(session) {
        Ok(certificate) => certificate.map(|certificate| CertificateView {
            authority: Fingerprint::Sha256(certificate.authority).to_string(),
            serial: certificate.serial,
            principals: certificate.principals.names().map(str::to_owned).collect(),
            valid_before: certificate.valid_before,
        }),
        Err(error) => {
            tracing::error!(%session, %error, "reading the certificate of a session");
            None
        }
    }
}

/// Table fill and counters.
///
/// # Errors
/// When a table cannot be read.
pub fn status(keeper: &Keeper) -> Result<StatusView, KernelError> {
    let counters = keeper.admission.counters()?;
    let (failed, refused) = keeper.queues.troubles().totals();
    let numbers = [
        ("ends_waiting", keeper.ends.waiting() as u64),
        ("sessions", keeper.admission.sessions()?.len() as u64),
        ("connections", keeper.admission.admissions()?.len() as u64),
        ("fence", u64::from(keeper.host.fence.missing().is_none())),
        ("limits_not_kept", keeper.queues.limits_not_kept() as u64),
        ("queues", keeper.queues.list().len() as u64),
        ("failed_starts", failed),
        ("waiting_refused", refused),
        (
            "recorder_connected",
            u64::from(keeper.recording.is_connected()),
        ),
    ];
    let mut status = StatusView::new::<roles::Keeper>(
        keeper.configuration.get().generation(),
        numbers,
        troubles(keeper),
    );
    status.numbers.extend(counters.named());
    status.numbers.extend(keeper.host.destinations.numbers());
    status.numbers.extend(keeper.host.ports.numbers());
    let refusals = keeper.host.fence.refusals()?;
    let refusals = refusals.iter().flat_map(Refusals::named);
    status.numbers.extend(refusals);
    Ok(status)
}

/// The reasons that sessions cannot be opened.
fn troubles(keeper: &Keeper) -> Vec<String> {
    let mut troubles = Vec::new();
    if !keeper.recording.is_connected() {
        troubles.push("not connected to the recorder, so no session is opened".to_owned());
    }
    let configuration = keeper.configuration.get();
    for service in configuration.checked.policy.services.values() {
        let name = &service.name;
        if let (ServedBy::Account(_), Some(reason)) =
            (&service.served_by, keeper.host.fence.missing())
        {
            troubles.push(format!("sessions with {name} are refused: {reason}"));
        }
        if let Err(refusal) = keeper.host.destinations.serves(service) {
            troubles.push(format!("sessions with {name} are refused: {refusal}"));
        }
    }
    troubles
}

fn state_name(state: AdmissionState) -> &'static str {
    match state {
        AdmissionState::Announced => "announced",
        AdmissionState::SynReceived => "syn_received",
        AdmissionState::Withdrawn => "withdrawn",
        AdmissionState::Established => "established",
    }
}
