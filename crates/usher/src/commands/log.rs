//! `usher log`: shows, verifies and exports the signed log.

mod export;
mod key;
mod verification;

use std::ops::Range;
use std::path::PathBuf;

use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};
use usher_base::UserName;
use usher_local::paths;
use usher_log::{LogError, Reader, RecordError, Says, SignedEnd, Verified};
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{LogKey, SessionId, session_id};

use crate::failure::Failure;
use crate::output::{Output, row, table};
pub use export::{Export, export};
pub use key::{finish_change, has_next_key, make_next};
pub use verification::{Verification, verify};

/// Records by their index: only those that a client or the log has signed.
type Records = Vec<(u64, Says)>;

/// A record, for programs.
fn view(index: u64, says: &Says) -> Result<Value, Failure> {
    let verified = match says {
        Says::Authentication(verified) => verified,
        Says::End(SignedEnd { end, .. }) => {
            // JSON object [`session_end`]:
            //   kind: `session_end`.
            //   index: The record's index.
            //   session: The session.
            //   user: Its user.
            //   service: The address and port of the service.
            //   ended: When it ended, by this host's clock.
            //   reason: The name of the reason.
            //   text: The reason, for people.
            return Ok(json!({
                "kind": "session_end", "index": index, "session": end.session, "user": end.user,
                "service": end.service, "ended": end.ended, "reason": end.reason.name(),
                "text": end.reason.to_string(),
            }));
        }
        Says::KeyChange(change) => {
            // JSON object [`key_change`]:
            //   kind: `key_change`.
            //   index: The record's index.
            //   changed: When the log's key was changed, by this host's clock.
            //   former_key: The key that signed what is before this record.
            //   key: The key that signs what follows.
            return Ok(json!({
                "kind": "key_change", "index": index, "changed": change.changed,
                "former_key": openssh(&change.former.public_key())?,
                "key": openssh(&change.next.public_key())?,
            }));
        }
    };
    let statement = &verified.statement;
    let certificate = verified.certificate.as_ref().map(|certificate| {
        // JSON object [`client_certificate`]:
        //   authority: The authority's public key.
        //   authority_fingerprint: Its fingerprint.
        //   key_id: The certificate's key id.
        //   serial: Its serial number; 0: none.
        //   principals: List of texts: the names that its holder may use.
        //   valid_after: When it begins to be valid.
        //   valid_before: When it expires.
        Ok::<_, Failure>(json!({
            "authority": openssh(&certificate.authority)?,
            "authority_fingerprint": fingerprint(&certificate.authority),
            "key_id": certificate.key_id, "serial": certificate.serial,
            "principals": certificate.principals.names().collect::<Vec<_>>(),
            "valid_after": certificate.valid_after, "valid_before": certificate.valid_before,
        }))
    });
    // JSON object [`authentication`]:
    //   kind: `authentication`.
    //   index: The record's index.
    //   session: The session.
    //   user: The user.
    //   service: The address and port of the service.
    //   server: The name of the server's host.
    //   issued: When the client signed, by its clock.
    //   expires: When the session ends at the latest.
    //   client_host_key: The key of the client's host.
    //   server_host_key: The key of the server's host.
    //   key: The public key that signed.
    //   fingerprint: Its fingerprint.
    //   certificate: The [`client_certificate`] of the key, or null.
    Ok(json!({
        "kind": "authentication", "index": index, "session": session_of(verified),
        "user": statement.user, "service": statement.service, "server": statement.server,
        "issued": statement.issued, "expires": statement.expires,
        "client_host_key": statement.client_host_key,
        "server_host_key": statement.server_host_key,
        "key": openssh(&verified.key)?, "fingerprint": fingerprint(&verified.key),
        "certificate": certificate.transpose()?,
    }))
}

/// The session of an authentication.
fn session_of(verified: &Verified) -> SessionId {
    session_id(&verified.statement.encode())
}

/// As `ssh-keygen -l` shows it.
pub fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
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
    fn has(&self, says: &Says) -> bool {
        let (user, session) = match says {
            Says::Authentication(verified) => (
                &verified.statement.user,
                self.session.map(|_| session_of(verified)),
            ),
            Says::End(SignedEnd { end, .. }) => (&end.user, Some(end.session)),
            Says::KeyChange(_) => return self.user.is_none() && self.session.is_none(),
        };
        self.user.as_ref().is_none_or(|wanted| wanted == user)
            && (self.session.is_none() || self.session == session)
    }

    /// The selected records in a range, oldest first. `keys` are the log's keys that are known so far, and up to
    /// which record they sign.
    fn read(
        &self,
        reader: &Reader,
        range: Range<u64>,
        keys: &mut Vec<(LogKey, u64)>,
    ) -> Result<Records, Failure> {
        let mut selected = Vec::new();
        for (index, record) in range.clone().zip(reader.records(range)?) {
            let says = record.verify();
            let says = says.map_err(|error| Failure::LogRecord { index, error })?;
            if let Says::End(SignedEnd { key, .. }) = &says
                && !keys
                    .iter()
                    .any(|(known, until)| known == key && index <= *until)
            {
                keys.push((*key, require_key(*key, reader, index)?));
            }
            if self.has(&says) {
                selected.push((index, says));
            }
        }
        Ok(selected)
    }

    /// The selected records of a log with `size` records: the first ones from `from` on, or the newest.
    fn find(&self, reader: &Reader, size: u64) -> Result<Records, Failure> {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        // Without a filter, no more records are read than are printed.
        let chunk = match (&self.user, &self.session) {
            (None, None) => self.count.clamp(1, CHUNK),
            _ => CHUNK,
        };
        let mut found = Vec::new();
        let mut keys = Vec::new();
        if let Some(mut from) = self.from {
            if from > size {
                return Err(LogError::NoRecord { index: from, size }.into());
            }
            while from < size && found.len() < count {
                let end = size.min(from.saturating_add(chunk));
                found.extend(self.read(reader, from..end, &mut keys)?);
                from = end;
            }
            found.truncate(count);
        } else {
            let mut end = size;
            while end > 0 && found.len() < count {
                let from = end.saturating_sub(chunk);
                found.splice(0..0, self.read(reader, from..end, &mut keys)?);
                end = from;
            }
            found.drain(..found.len().saturating_sub(count));
        }
        Ok(found)
    }
}

/// Checks that an end is signed by the key that the log has at its place. Returns up to which record that key
/// signs.
fn require_key(key: LogKey, reader: &Reader, index: u64) -> Result<u64, Failure> {
    // The log is read only for a former key.
    if reader.verifying_key()?.public_key() == key {
        return Ok(u64::MAX);
    }
    match reader.key_at(index)? {
        (at, until) if at == key => Ok(until),
        _ => {
            let error = RecordError::OtherLog;
            Err(Failure::LogRecord { index, error })
        }
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
    let views = records.iter().map(|(index, says)| view(*index, says));
    let views: Vec<Value> = views.collect::<Result<_, _>>()?;
    // JSON of `usher log show`:
    //   size: How many records the log has.
    //   records: List of [`authentication`], [`session_end`] and [`key_change`], oldest first.
    output.print(&json!({ "size": size, "records": views }), || {
        if records.is_empty() {
            return format!("no records to show; the log has {size}\n");
        }
        let heading = ["INDEX", "TIME", "USER", "SERVICE", "SESSION", "WHAT"];
        table(heading, records.iter().map(cells))
    });
    Ok(())
}

fn cells((index, says): &(u64, Says)) -> [String; 6] {
    let verified = match says {
        Says::Authentication(verified) => verified,
        Says::End(SignedEnd { end, .. }) => {
            let what = format!("ended: {} ({})", end.reason, end.reason.name());
            let time = utc(end.ended);
            return row![index, time, end.user, end.service, end.session, what];
        }
        Says::KeyChange(change) => {
            let [former, next] = [&change.former, &change.next];
            let what = format!(
                "the log's key was changed from {} to {}",
                fingerprint(&former.public_key()),
                fingerprint(&next.public_key())
            );
            return row![index, utc(change.changed), "-", "-", "-", what];
        }
    };
    let session = session_of(verified);
    let statement = &verified.statement;
    let mut what = format!(
        "authenticated for {} by {}",
        statement.server,
        fingerprint(&verified.key)
    );
    if let Some(certificate) = &verified.certificate {
        // Quoted and on one line: an authority may write any text there.
        what += &format!(
            " certified by {} (serial {}, {:?})",
            fingerprint(&certificate.authority),
            certificate.serial,
            certificate.key_id
        );
    }
    let (time, user, service) = (utc(statement.issued), &statement.user, &statement.service);
    row![index, time, user, service, session, what]
}

fn openssh(key: &PublicKey) -> Result<String, Failure> {
    key.to_openssh()
        .map_err(|error| Failure::Refused(format!("a key has no text form: {error}")))
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
