//! dovecot of Debian 12 (2.3) and of Debian 13 (2.4), whose settings differ.

use crate::error::LabError;
use crate::host::Host;

/// dovecot's imap as docs/start.md has it in a `program` statement, for users with a Maildir: dovecot 2.3 reads
/// `mail_location` and ignores the three settings behind it, which 2.4 reads; 2.4 ends at once without
/// `-k`.
#[macro_export]
macro_rules! imap {
    () => {
        r#""/usr/lib/dovecot/imap" "-k" "-o" "mail_location=maildir:~/Maildir" "-o" "mail_driver=maildir" "-o" "mail_path=~/Maildir" "-o" "mail_inbox_path=~/Maildir" "-o" "stats_writer_socket_path=""#
    };
}

impl Host {
    /// The settings for the installed dovecot.
    ///
    /// # Errors
    /// When dovecot does not run, or is of another series.
    pub fn dovecot_settings(
        &self,
        of_2_3: &'static str,
        of_2_4: &'static str,
    ) -> Result<&'static str, LabError> {
        let version = self.run(["/usr/sbin/dovecot", "--version"])?.stdout;
        if version.starts_with("2.3.") {
            Ok(of_2_3)
        } else if version.starts_with("2.4.") {
            Ok(of_2_4)
        } else {
            Err(LabError::Dovecot { version })
        }
    }
}
