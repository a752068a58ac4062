//! `usher log`: shows, verifies and exports the signed log.

mod export;
mod verification;

use std::ops::Range;
use std::path::PathBuf;

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use usher_base::{ServiceName, UserName};
use usher_local::paths;
use usher_log::{LogError, Reader, Record, Says, Verified, VerifyingKey};
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{Certificate, HostPublicKey, SessionEnd, SessionId, session_id};

use crate::failure::Failure;
use crate::output::{Output, row, table};
pub use export::{Export, export};
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

/// The end of a session, as the log's host reports it.
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

/// A certificate of the key.
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
    /// The view of a record, if a client or the log has signed it.
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

/// The option that names a log.
#[derive(Debug, clap::Args)]
pub struct Folder {
    /// Directory of the log
    #[arg(long, value_name = "DIRECTORY", default_value = paths::LOG_DIRECTORY)]
    log: PathBuf,
}

/// The records to print.
#[derive(Debug, clap::Args)]
pub struct Selection {
    /// Index of the first record to show
    #[arg(long, value_name = "INDEX")]
    from: Option<u64>,
    /// Maximum number of records
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    count: u64,
    /// Show only records of this user
    #[arg(long, value_name = "NAME")]
    user: Option<UserName>,
    /// Show only records of this session, as `usher who` shows it
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionId>,
    #[command(flatten)]
    log: Folder,
}

/// Records to read at once.
const CHUNK: u64 = 256;

impl Selection {
    fn has(&self, record: &RecordView) -> bool {
        let (user, session) = match record {
            RecordView::Authentication(view) => (&view.user, &view.session),
            RecordView::SessionEnd(view) => (&view.user, &view.session),
        };
        self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.session.is_none_or(|wanted| wanted == *session)
    }

    /// The selected records in a range, oldest first.
    fn read(&self, reader: &Reader, range: Range<u64>) -> Result<Vec<RecordView>, Failure> {
        let records = reader.records(range.clone())?;
        let views = range
            .zip(&records)
            .map(|(index, record)| RecordView::new(reader.verifying_key(), index, record));
        let selected = views.filter(|view| view.as_ref().map_or(true, |view| self.has(view)));
        selected.collect()
    }

    /// The selected records of a log with `size` records: the first ones from `from` on, or the newest.
    fn find(&self, reader: &Reader, size: u64) -> Result<Vec<RecordView>, Failure> {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        // Without a filter, no more records are read than are printed.
        let chunk = match (&self.user, &self.session) {
            (None, None) => self.count.clamp(1, CHUNK),
            _ => CHUNK,
        };
        let mut found = Vec::new();
        if let Some(mut from) = self.from {
            if from > size {
                return Err(LogError::NoRecord { index: from, size }.into());
            }
            while from < size && found.len() < count {
                let end = size.min(from.saturating_add(chunk));
                found.extend(self.read(reader, from..end)?);
                from = end;
            }
            found.truncate(count);
        } else {
            let mut end = size;
            while end > 0 && found.len() < count {
                let from = end.saturating_sub(chunk);
                found.splice(0..0, self.read(reader, from..end)?);
                end = from;
            }
            found.drain(..found.len().saturating_sub(count));
        }
        Ok(found)
    }
}

/// Prints records.
///
/// # Errors
/// When there is no log or no such record, or a record that was read has no valid signature.
pub fn show(output: &Output, selection: &Selection) -> Result<(), Failure> {
    let reader = Reader::open(&selection.log.log)?;
    let size = reader.checkpoint()?.checkpoint().size;
    let records = selection.find(&reader, size)?;
    let view = RecordsView { size, records };
    output.print(&view, || text(&view));
    Ok(())
}

fn text(view: &RecordsView) -> String {
    if view.records.is_empty() {
        return format!("no records to show; the log has {}\n", view.size);
    }
    let heading = ["INDEX", "TIME", "USER", "SERVICE", "SESSION", "WHAT"];
    table(heading, view.records.iter().map(cells))
}

fn cells(record: &RecordView) -> [String; 6] {
    match record {
        RecordView::Authentication(view) => {
            let mut what = format!("authenticated for {} by {}", view.server, view.fingerprint);
            if let Some(certificate) = &view.certificate {
                // Quoted and on one line: an authority may write any text there.
                what += &format!(
                    " certified by {} (serial {}, {:?})",
                    certificate.authority_fingerprint, certificate.serial, certificate.key_id
                );
            }
            row![
                view.index,
                utc(view.issued),
                view.user,
                view.service,
                view.session,
                what,
            ]
        }
        RecordView::SessionEnd(view) => row![
            view.index,
            utc(view.ended),
            view.user,
            view.service,
            view.session,
            format!("ended: {} ({})", view.text, view.reason),
        ],
    }
}

fn openssh(key: &PublicKey) -> Result<String, Failure> {
    key.to_openssh()
        .map_err(|error| Failure::PublicKey(format!("a key has no text form: {error}")))
}

/// Formats seconds since 1970 by RFC 3339, in UTC. A client may have signed any number.
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
