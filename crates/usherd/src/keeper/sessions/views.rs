//! Sessions as `usher who` and `usher apply` show them.

use std::collections::HashMap;

use usher_kernel::KernelError;
use usher_kernel::admission::{AdmissionRow, AdmissionState, SessionRecord};
use usher_local::checked::Checked;
use usher_local::requests::{CertificateView, ConnectionView, EndingView, SessionView};
use usher_proto::session_id::SessionId;
use usher_proto::ssh_key::Fingerprint;

use super::Sessions;
use super::table::Ending;

impl Sessions {
    /// All sessions with their connections.
    pub fn views(&self) -> Result<Vec<SessionView>, KernelError> {
        let rows = self.host.admissions()?;
        let rows = by_session(&rows);
        let tokens = self.token_positions()?;
        let configuration = self.host.configuration.get();
        let mut sessions: Vec<SessionView> = self
            .host
            .admission
            .sessions()?
            .iter()
            // A closed session is shown while its connections live.
            .filter(|(session, record)| record.ended.is_none() || rows.contains_key(session))
            .map(|(session, record)| {
                self.session_view(&configuration.checked, session, record, &rows, &tokens)
            })
            .collect();
        sessions.sort_by_cached_key(|view| (view.opened, view.session.clone()));
        Ok(sessions)
    }

    /// The number of used tokens of each session that has a slot for tokens.
    fn token_positions(&self) -> Result<HashMap<SessionId, u32>, KernelError> {
        let slots = self.host.admission.tokens()?;
        Ok(slots
            .into_iter()
            .map(|row| (row.session, row.position))
            .collect())
    }

    /// One session, with its service's name by `checked`.
    fn session_view(
        &self,
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
            certificate: self.certificate_view(session, record),
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
    pub(super) fn ending_views(
        &self,
        checked: &Checked,
        ending: &[Ending],
        rows: &[AdmissionRow],
    ) -> Vec<EndingView> {
        let tokens = self.token_positions().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the table of tokens");
            HashMap::new()
        });
        let rows = by_session(rows);
        let mut views: Vec<EndingView> = ending
            .iter()
            .map(|entry| EndingView {
                session: self.session_view(checked, &entry.session, &entry.record, &rows, &tokens),
                reason: entry.reason.name().into(),
                text: entry.reason.to_string(),
            })
            .collect();
        views.sort_by_cached_key(|view| (view.session.opened, view.session.session.clone()));
        views
    }

    fn certificate_view(
        &self,
        session: &SessionId,
        record: &SessionRecord,
    ) -> Option<CertificateView> {
        let certificate = self.table.certificate(session, record).ok()??;
        Some(CertificateView {
            authority: Fingerprint::Sha256(certificate.authority).to_string(),
            serial: certificate.serial,
            principals: certificate.principals.names().map(str::to_owned).collect(),
            valid_before: certificate.valid_before,
        })
    }
}

/// Connections by their sessions.
fn by_session(rows: &[AdmissionRow]) -> HashMap<SessionId, Vec<&AdmissionRow>> {
    let mut sessions: HashMap<SessionId, Vec<&AdmissionRow>> = HashMap::new();
    for row in rows {
        sessions.entry(row.session).or_default().push(row);
    }
    sessions
}

/// One connection.
pub(super) fn connection_view(row: &AdmissionRow) -> ConnectionView {
    ConnectionView {
        client: row.connection.client.to_string(),
        server: row.connection.server.to_string(),
        state: state_name(row.state).into(),
        seconds: row.established.map(|age| age.as_secs_f64()),
    }
}

fn state_name(state: AdmissionState) -> &'static str {
    match state {
        AdmissionState::Announced => "announced",
        AdmissionState::SynReceived => "syn_received",
        AdmissionState::Withdrawn => "withdrawn",
        AdmissionState::Established => "established",
    }
}
