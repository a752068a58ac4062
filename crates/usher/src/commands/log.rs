//! `usher log`: the signed log, shown, verified, exported.

mod verification;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use usher_local::key_options;
use usher_log::{LogError, Reader, Record, RecordError, Verified};
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{Certificate, HostPublicKey, NAMESPACE, ServiceName, SessionId, UserName};

use crate::failure::{At, Failure};
use crate::output::{Output, table};
pub use verification::{Verification, verify};

#[derive(Serialize)]
struct RecordsView {
    size: u64,
    records: Vec<RecordView>,
}

#[derive(Serialize)]
struct RecordView {
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

impl RecordView {
    fn new(index: u64, record: &Record, verified: &Verified) -> Result<Self, Failure> {
        let statement = &verified.statement;
        Ok(Self {
            index,
            session: record.session(),
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

    /// Who `ssh-keygen -Y verify` is told that has signed: the user, or the principal by which the
    /// user was let in where the certificate does not name the user.
    ///
    /// # Errors
    /// When no principal can stand in a command and in a list of allowed signers: an authority may
    /// write there what it likes, blanks, patterns and what a shell would do.
    fn identity(&self) -> Result<&str, Failure> {
        let user = self.user.as_str();
        let Some(certificate) = &self.certificate else {
            return Ok(user);
        };
        let mut principals = certificate.principals.iter().map(String::as_str);
        if principals.clone().any(|name| name == user) {
            return Ok(user);
        }
        principals
            .find(|name| is_plain(name))
            .ok_or(Failure::UnusablePrincipals { index: self.index })
    }

    /// The line of allowed signers (ssh-keygen(1)) by which the record verifies.
    fn allowed_signer(&self) -> Result<String, Failure> {
        let identity = self.identity()?;
        Ok(match &self.certificate {
            None => format!("{identity} {}\n", self.key),
            Some(certificate) => format!("{identity} cert-authority {}\n", certificate.authority),
        })
    }
}

/// Prints `count` records, from `from` on or the newest ones.
///
/// # Errors
/// When there is no log, no such record, or one is not a client's.
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
        .map(|(index, record)| RecordView::new(index, record, &verified(index, record)?))
        .collect::<Result<Vec<_>, _>>()?;
    let view = RecordsView { size, records };
    output.print(&view, || text(&view));
    Ok(())
}

fn text(view: &RecordsView) -> String {
    if view.records.is_empty() {
        return format!("no records to show; the log has {}\n", view.size);
    }
    let rows: Vec<Vec<String>> = view
        .records
        .iter()
        .map(|record| {
            vec![
                record.index.to_string(),
                utc(record.issued),
                record.user.to_string(),
                record.service.to_string(),
                record.server.to_string(),
                match &record.certificate {
                    None => record.fingerprint.clone(),
                    // In quotes, and on one line: an authority writes there what it likes.
                    Some(certificate) => format!(
                        "{} certified by {} (serial {}, {:?})",
                        record.fingerprint,
                        certificate.authority_fingerprint,
                        certificate.serial,
                        certificate.key_id
                    ),
                },
                record.session.to_string(),
            ]
        })
        .collect();
    let heading = [
        "INDEX", "ISSUED", "USER", "SERVICE", "SERVER", "KEY", "SESSION",
    ];
    table(&heading, &rows)
}

/// Whether a principal can stand in a command and in a list of allowed signers.
fn is_plain(principal: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
    !principal.is_empty() && !principal.starts_with('-') && principal.bytes().all(plain)
}

#[derive(Serialize)]
struct ExportView {
    index: u64,
    user: UserName,
    directory: PathBuf,
    files: Vec<&'static str>,
}

/// Writes a record and its proof as files that need none of Usher's programs.
///
/// # Errors
/// When there is no such record, it is not a client's or not the one in the tree, or a file
/// exists.
pub fn export(output: &Output, directory: &Path, index: u64, target: &Path) -> Result<(), Failure> {
    let reader = Reader::open(directory)?;
    let proof = reader.tlog_proof(index)?;
    let record = reader.record(index)?;
    let verified = verified(index, &record)?;
    let view = RecordView::new(index, &record, &verified)?;
    let signature = record.authenticator.signature_pem();
    let signature = signature.map_err(|refusal| Failure::LogRecord {
        index,
        error: RecordError::Signature(refusal),
    })?;
    let identity = view.identity()?.to_owned();
    // A certificate has an end, and most are over when a record is looked at.
    let time = match &view.certificate {
        None => String::new(),
        Some(_) => format!("-O verify-time={} ", verify_time(view.issued)),
    };
    let key = match &verified.certificate {
        Some(certificate) => certificate.line(),
        None => view.key.clone(),
    };
    let files = [
        ("statement", record.authenticator.statement.clone()),
        ("statement.sig", signature.into_bytes()),
        ("key.pub", format!("{key}\n").into_bytes()),
        ("allowed_signers", view.allowed_signer()?.into_bytes()),
        ("record", record.encode()),
        ("record.tlog-proof", proof.into_bytes()),
    ];
    fs::create_dir_all(target).at(target)?;
    for (name, bytes) in &files {
        let path = target.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&path);
        file.and_then(|mut file| file.write_all(bytes)).at(&path)?;
    }
    let exported = ExportView {
        index,
        user: view.user,
        directory: target.to_owned(),
        files: files.iter().map(|(name, _)| *name).collect(),
    };
    output.print(&exported, || {
        format!(
            "wrote record {index} to {}; put the key that you know of {identity}{authority} into \
             allowed_signers, then there:\n\
             ssh-keygen -Y verify {time}-f allowed_signers -I {identity} -n {NAMESPACE} \
             -s statement.sig < statement\n",
            target.display(),
            authority = if time.is_empty() { "" } else { "'s authority" },
        )
    });
    Ok(())
}

/// What a record says, if a client has signed it.
fn verified(index: u64, record: &Record) -> Result<Verified, Failure> {
    record
        .verify()
        .map_err(|error| Failure::LogRecord { index, error })
}

fn openssh(key: &PublicKey) -> Result<String, Failure> {
    key.to_openssh()
        .map_err(|error| Failure::PublicKey(format!("a key has no text form: {error}")))
}

/// Seconds since 1970 as `ssh-keygen -O verify-time` takes it, in UTC.
fn verify_time(seconds: u64) -> String {
    key_options::expiry_time(seconds).unwrap_or_else(|| seconds.to_string())
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

    #[test]
    fn what_a_shell_or_a_pattern_would_read_otherwise_is_no_identity() {
        for plain in ["ops", "alice@example.org", "a_b-c.d+e"] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in [
            "", "$(id)", "a b", "*", "!a", "a;b", "-I", "\"", "a?", "\u{e9}",
        ] {
            assert!(!is_plain(other), "{other}");
        }
    }
}
