//! Accounts that vanish while their users have sessions. A deleted account, or one made again with
//! another number, no longer belongs to the authenticated user. They are reported, and then the
//! sessions end, with their processes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use usher_proto::refusal::Refusal;

use super::queue::Queue;
use super::{Key, Queues};
use crate::keeper::host::accounts::Accounts;

/// The file of local accounts; when it changes, all accounts are looked up again.
const LOCAL: &str = "/etc/passwd";
/// The interval, in seconds, at which every account is looked up that the name service may get from
/// another source.
const ROUND: usize = 300;
/// The time for which an account must be missing. A name service that is being restarted may report
/// any account as missing.
const MISSING: Duration = Duration::from_secs(2);

impl Queues {
    /// Looks the accounts of all queues up, for ever, and reports those that are gone.
    pub async fn watch_accounts(&self) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut seen, mut last) = (local(), None);
        loop {
            second.tick().await;
            let mut queues = self.list();
            let present = local();
            let count = match present == seen {
                true => queues.len().div_ceil(ROUND),
                false => queues.len(),
            };
            seen = present;
            // Queues after the last one checked, then from the beginning again.
            queues.sort_unstable_by_key(|queue| (last >= Some(queue.key), queue.key));
            for queue in queues.into_iter().take(count) {
                last = Some(queue.key);
                if let Err(refusal) = look(&self.common.host.accounts, &queue).await {
                    tracing::warn!(service = %queue.service, user = %queue.account.name,
                        uid = queue.account.uid, reason = refusal.name(),
                    "the account of a user is gone, or is another by now: the sessions end");
                    self.common.report_lost(&queue, refusal).await;
                }
            }
        }
    }
}

/// Identifies the state of the local accounts.
fn local() -> Option<(u64, i64, i64, u64)> {
    let state = |file: Metadata| (file.ino(), file.mtime(), file.mtime_nsec(), file.size());
    std::fs::metadata(LOCAL).ok().map(state)
}

/// Checks that an account is unchanged since its queue was made.
///
/// # Errors
/// The reason for which its sessions end.
async fn look(accounts: &Accounts, queue: &Queue) -> Result<(), Refusal> {
    let (_, uid): Key = queue.key;
    let name = &queue.account.name;
    let mut found = accounts.asked_freely(name).await;
    if matches!(found, Err(Refusal::NoLocalAccount)) {
        tokio::time::sleep(MISSING).await;
        found = accounts.by_name(name).await;
    }
    match found {
        Ok(account) if account.uid != uid => Err(Refusal::NoLocalAccount),
        Err(refusal @ (Refusal::NoLocalAccount | Refusal::PrivilegedAccount)) => Err(refusal),
        // The name service cannot answer now. Starting a process looks the account up again.
        Ok(_) | Err(_) => Ok(()),
    }
}
