//! Live state for `usher who` and `usher doctor`.

use std::collections::{BTreeMap, HashMap};

use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, AdmissionState, SessionRecord};
use usher_kernel::ownership::Refusals;
use usher_local::applied::Checked;
use usher_local::control::{ConnectionView, SessionView, StatusView, WhoView, WorkerView};
use usher_proto::name::ServiceName;
use usher_proto::session_id::SessionId;
use usher_proto::ssh_key::Fingerprint;

use super::{Keeper, service_by_id};

/// Sessions with their connections, and workers.
///
/// # Errors
/// When a table cannot be read.
pub fn view(keeper: &Keeper) -> Result<WhoView, KernelError> {
    let configuration = keeper.configuration();
    let rows = keeper.admission.admissions()?;
    let tokens = token_positions(keeper)?;
    let mut sessions: Vec<SessionView> = keeper
        .admission
        .sessions()?
        .iter()
        // A session its client has closed shows while its connections live.
        .filter(|(session, record)| {
            record.ended.is_none() || rows.iter().any(|row| row.session == *session)
        })
        .map(|(session, record)| session_view(&configuration.1, session, record, &rows, &tokens))
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
    Ok(WhoView { sessions, workers })
}

/// How many of its tokens each session that has any has used.
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

/// One session.
pub fn session_view(
    checked: &Checked,
    session: &SessionId,
    record: &SessionRecord,
    rows: &[AdmissionRow],
    tokens: &HashMap<SessionId, u32>,
) -> SessionView {
    SessionView {
        session: session.to_string(),
        user: record.user.clone(),
        host: record.host.clone(),
        service: service_name(checked, record.service),
        uid: record.uid,
        key: Fingerprint::Sha256(record.key_fingerprint).to_string(),
        opened: record.opened,
        expires: record.expires,
        used: record.tip.position,
        tokens: tokens.get(session).copied(),
        chain_length: record.chain_length,
        connections: rows
            .iter()
            .filter(|row| row.session == *session)
            .map(|row| ConnectionView {
                client: row.connection.client.to_string(),
                server: row.connection.server.to_string(),
                state: state_name(row.state).into(),
                seconds: row.established.map(|age| age.as_secs_f64()),
            })
            .collect(),
    }
}

/// Table fill and counters.
///
/// # Errors
/// When a table cannot be read.
pub fn status(keeper: &Keeper) -> Result<StatusView, KernelError> {
    let counters = keeper.admission.counters()?;
    let mut numbers: BTreeMap<String, u64> = counters.named().into_iter().collect();
    numbers.insert("sessions".into(), keeper.admission.sessions()?.len() as u64);
    numbers.insert(
        "connections".into(),
        keeper.admission.admissions()?.len() as u64,
    );
    for (name, count) in keeper.fence.refusals()?.iter().flat_map(Refusals::named) {
        numbers.insert(name, count);
    }
    numbers.insert("fence".into(), u64::from(keeper.fence.missing().is_none()));
    numbers.insert("queues".into(), keeper.queues.list().len() as u64);
    Ok(StatusView {
        role: "keeper".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        generation: keeper.configuration().0.generation,
        numbers,
    })
}

/// The service's name, or one made of its number when the policy no longer has it.
pub fn service_name(checked: &Checked, id: u32) -> ServiceName {
    service_by_id(checked, id).map_or_else(
        // The policy no longer has it; its number is still a valid name.
        || {
            format!("service-{id}")
                .parse()
                .unwrap_or_else(|_| unreachable!("a valid name"))
        },
        |service| service.name.clone(),
    )
}

fn state_name(state: AdmissionState) -> &'static str {
    match state {
        AdmissionState::Announced => "announced",
        AdmissionState::SynReceived => "syn_received",
        AdmissionState::Withdrawn => "withdrawn",
        AdmissionState::Established => "established",
    }
}
