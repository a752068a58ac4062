//! Accounts that go while their users have sessions: one that was deleted, or made anew with another
//! number, is nobody's whom a client has authenticated. Its sessions end, with its processes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use usher_proto::refusal::Refusal;

use super::queue::Queue;
use super::queues::Key;
use super::{Keeper, revocation};

/// The local accounts; all are looked up again when it changes.
const LOCAL: &str = "/etc/passwd";
/// How often every account is looked up that the name service may have from elsewhere, seconds.
const ROUND: usize = 300;
/// How long an account has to be missing. A name service that is being restarted may say of anybody
/// that there is no such account.
const MISSING: Duration = Duration::from_secs(2);

/// Looks accounts up for ever.
pub async fn watch(keeper: Arc<Keeper>) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut seen, mut last) = (local(), None);
    loop {
        second.tick().await;
        let mut queues = keeper.queues.list();
        let present = local();
        let count = match present == seen {
            true => queues.len().div_ceil(ROUND),
            false => queues.len(),
        };
        seen = present;
        // Those behind the one that was looked at last, and then from the beginning again.
        queues.sort_unstable_by_key(|queue| (last >= Some(queue.key), queue.key));
        for queue in queues.into_iter().take(count) {
            last = Some(queue.key);
            if let Err(refusal) = look(&keeper, &queue).await {
                tracing::warn!(service = %queue.service, user = %queue.account.name,
                    uid = queue.account.uid, reason = refusal.name(),
                    "the account of a user is gone, or is another by now: the sessions end");
                revocation::end_account(&keeper, queue.key, refusal);
            }
        }
    }
}

/// What tells one state of the local accounts from another.
fn local() -> Option<(u64, i64, i64, u64)> {
    let state = |file: Metadata| (file.ino(), file.mtime(), file.mtime_nsec(), file.size());
    std::fs::metadata(LOCAL).ok().map(state)
}

/// Whether an account is what it was when its queue was made.
///
/// # Errors
/// Why its sessions end.
async fn look(keeper: &Keeper, queue: &Queue) -> Result<(), Refusal> {
    let (_, uid): Key = queue.key;
    let name = &queue.account.name;
    let mut found = keeper.accounts.asked_freely(name).await;
    if matches!(found, Err(Refusal::NoLocalAccount)) {
        tokio::time::sleep(MISSING).await;
        found = keeper.accounts.by_name(name).await;
    }
    match found {
        Ok(account) if account.uid != uid => Err(Refusal::NoLocalAccount),
        Err(refusal @ (Refusal::NoLocalAccount | Refusal::PrivilegedAccount)) => Err(refusal),
        // One that the name service cannot say now: what is started as it looks again.
        Ok(_) | Err(_) => Ok(()),
    }
}
