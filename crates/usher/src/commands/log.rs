//! `usher log`: the signed log, shown, verified, exported.

mod export;
mod verification;

use std::path::Path;

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use usher_log::{LogError, Reader, Record, Says, Verified, VerifyingKey};
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{
    Certificate, HostPublicKey, ServiceName, SessionEnd, SessionId, UserName, session_id,
};

use crate::failure::Failure;
use crate::output::{Output, table};
pub use export::export;
pub use verification::{Verification, verify};

#[derive(Serialize)]
struct RecordsView {
    size: u64,
    records: Vec<RecordView>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum RecordView {
    Authentication(Box<AuthenticationView>),
    SessionEnd(EndView),
}

#[derive(Serialize)]
struct AuthenticationView {
    index: u64,
    session: SessionId,
    user: UserName,
    service: ServiceName,
    server: std::net::SocketAddr,
    issued: u64,
    expires: u64,
    client_host_key: HostPublicKey,
    server_host_key: HostPublicKey,
    key: String,
    fingerprint: String,
    certificate: Option<CertificateView>,
}

/// How a session ended, as the log's host says.
#[derive(Serialize)]
struct EndView {
    index: u64,
    session: SessionId,
    user: UserName,
    service: ServiceName,
    ended: u64,
    reason: &'static str,
    text: String,
}

/// What an authority said of the key.
#[derive(Serialize)]
struct CertificateView {
    authority: String,
    authority_fingerprint: String,
    key_id: String,
    serial: u64,
    principals: Vec<String>,
    valid_after: u64,
    valid_before: u64,
}

impl CertificateView {
    fn new(certificate: &Certificate) -> Result<Self, Failure> {
        Ok(Self {
            authority: openssh(&certificate.authority)?,
            authority_fingerprint: certificate
                .authority
                .fingerprint(HashAlg::Sha256)
                .to_string(),
            key_id: certificate.key_id.clone(),
            serial: certificate.serial,
            principals: certificate.principals.names().map(str::to_owned).collect(),
            valid_after: certificate.valid_after,
            valid_before: certificate.valid_before,
        })
    }
}

impl EndView {
    fn new(index: u64, end: SessionEnd) -> Self {
        Self {
            index,
            session: end.session,
            user: end.user,
            service: end.service,
            ended: end.ended,
            reason: end.reason.name(),
            text: end.reason.to_string(),
        }
    }
}

impl RecordView {
    /// What the record at an index says, if a client or the log has signed it.
    fn new(log: &VerifyingKey, index: u64, record: &Record) -> Result<Self, Failure> {
        let says = record.verify(log.public_key());
        match says.map_err(|error| Failure::LogRecord { index, error })? {
            Says::Authentication(verified) => {
                let view = AuthenticationView::new(index, &verified)?;
                Ok(Self::Authentication(Box::new(view)))
            }
            Says::End(end) => Ok(Self::SessionEnd(EndView::new(index, end))),
        }
    }
}

impl AuthenticationView {
    fn new(index: u64, verified: &Verified) -> Result<Self, Failure> {
        let statement = &verified.statement;
        Ok(Self {
            index,
            session: session_id(&statement.encode()),
            user: statement.user.clone(),
            service: statement.service.clone(),
            server: statement.server,
            issued: statement.issued,
            expires: statement.expires,
            client_host_key: statement.client_host_key,
            server_host_key: statement.server_host_key,
            key: openssh(&verified.key)?,
            fingerprint: verified.key.fingerprint(HashAlg::Sha256).to_string(),
            certificate: verified
                .certificate
                .as_ref()
                .map(CertificateView::new)
                .transpose()?,
        })
    }
}

/// Prints `count` records, from `from` on or the newest ones.
///
/// # Errors
/// When there is no log, no such record, or nobody has signed one.
pub fn show(
    output: &Output,
    directory: &Path,
    from: Option<u64>,
    count: u64,
) -> Result<(), Failure> {
    let reader = Reader::open(directory)?;
    let size = reader.checkpoint()?.checkpoint().size;
    let from = from.unwrap_or(size.saturating_sub(count));
    if from > size {
        return Err(LogError::NoRecord { index: from, size }.into());
    }
    let records = reader.records(from..size.min(from.saturating_add(count)))?;
    let records = (from..)
        .zip(&records)
        .map(|(index, record)| RecordView::new(reader.verifying_key(), index, record))
        .collect::<Result<Vec<_>, _>>()?;
    let view = RecordsView { size, records };
    output.print(&view, || text(&view));
    Ok(())
}

fn text(view: &RecordsView) -> String {
    if view.records.is_empty() {
        return format!("no records to show; the log has {}\n", view.size);
    }
    let rows: Vec<Vec<String>> = view.records.iter().map(row).collect();
    let heading = ["INDEX", "TIME", "USER", "SERVICE", "SESSION", "WHAT"];
    table(&heading, &rows)
}

fn row(record: &RecordView) -> Vec<String> {
    match record {
        RecordView::Authentication(view) => {
            let mut what = format!("authenticated for {} by {}", view.server, view.fingerprint);
            if let Some(certificate) = &view.certificate {
                // In quotes, and on one line: an authority writes there what it likes.
                what += &format!(
                    " certified by {} (serial {}, {:?})",
                    certificate.authority_fingerprint, certificate.serial, certificate.key_id
                );
            }
            vec![
                view.index.to_string(),
                utc(view.issued),
                view.user.to_string(),
                view.service.to_string(),
                view.session.to_string(),
                what,
            ]
        }
        RecordView::SessionEnd(view) => vec![
            view.index.to_string(),
            utc(view.ended),
            view.user.to_string(),
            view.service.to_string(),
            view.session.to_string(),
            format!("ended: {} ({})", view.text, view.reason),
        ],
    }
}

fn openssh(key: &PublicKey) -> Result<String, Failure> {
    key.to_openssh()
        .map_err(|error| Failure::PublicKey(format!("a key has no text form: {error}")))
}

/// Seconds since 1970 as RFC 3339 has it, in UTC. A client may have signed any number.
pub fn utc(seconds: u64) -> String {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.map_or_else(
        || format!("{seconds} seconds after 1970"),
        |time| time.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_rfc_3339_has_them() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_800_000_000), "2027-01-15T08:00:00Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(utc(u64::MAX), format!("{} seconds after 1970", u64::MAX));
    }
}
