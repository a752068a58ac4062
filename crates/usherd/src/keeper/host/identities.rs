//! Whether a user's processes may be started, and with which identity. The answer is looked up for each
//! address of a client, because PAM's answer may depend on the address. It is cached as long as is safe,
//! because a look-up takes longer than starting the process.
//!
//! An answer is valid while the files that PAM and the name service read are unchanged, and at most
//! for [`BELIEVED`], because other sources (LDAP, SSSD) change without a file of this host. An
//! apply drops all answers at once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use usher_base::UserName;
use usher_local::paths::SHOWN_MODULES;
use usher_proto::refusal::Refusal;
use usher_system_label::login::MAC_LOGIN;

use super::accounts::{Account, Identity};
use super::cache::Cache;

/// The time for which an identity is cached. A starter's order stands for a second more, so a
/// change takes effect within five.
const BELIEVED: Duration = Duration::from_secs(4);
/// The time for which a refusal or a missing account is cached.
const REFUSED: Duration = Duration::from_secs(1);
/// The time limit of an answer, for the name service and for PAM's modules, which have one of their own.
const PATIENCE: Duration = Duration::from_secs(14);
/// Limit of cached answers.
const KEPT: usize = 16_384;
/// The files that determine the answers. The list of modules in force changes when mac.login begins to count.
const FILES: [&str; 12] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/shadow",
    "/etc/nsswitch.conf",
    "/etc/shells",
    "/etc/nologin",
    "/run/nologin",
    "/etc/pam.d/usher",
    "/etc/pam.d/common-account",
    "/etc/security/access.conf",
    MAC_LOGIN,
    SHOWN_MODULES,
];

/// The cached answers.
pub struct Identities {
    /// Checks whether an account may be served; see [`super::pam::permitted`].
    check: Check,
    known: Cache<(UserName, IpAddr), CachedIdentity>,
    /// Incremented to drop all answers.
    age: Arc<AtomicU64>,
}

type Check = fn(&UserName, IpAddr) -> Result<(), Refusal>;

#[derive(Clone)]
struct CachedIdentity {
    uid: u32,
    /// The age of an answer counts from its question.
    asked: Instant,
    age: u64,
    files: Files,
    answer: Result<Arc<Identity>, Refusal>,
}

/// Identifies the state of the files: device, inode, size, and the times of the last change of the
/// contents and of the inode.
type Files = [Option<[i64; 7]>; FILES.len()];

impl Identities {
    /// An empty cache. An account is looked up if `check` permits it.
    pub fn new(check: Check) -> Self {
        Self {
            check,
            known: Cache::new(KEPT, PATIENCE, CachedIdentity::is_recent),
            age: Arc::default(),
        }
    }

    /// The identity of an account's processes that serve clients at an address.
    ///
    /// # Errors
    /// See [`Account::identity`]; those of the check; [`Refusal::KeeperUnavailable`] without an answer in time.
    pub async fn of(&self, account: &Account, client: IpAddr) -> Result<Arc<Identity>, Refusal> {
        self.find(account, client, self.check).await
    }

    /// The identity of a service's own account. No user logs in as this account, so PAM is not asked.
    ///
    /// # Errors
    /// See [`Account::identity`]; [`Refusal::KeeperUnavailable`] without an answer in time.
    pub async fn of_service(&self, account: &Account) -> Result<Arc<Identity>, Refusal> {
        self.find(account, IpAddr::V6(Ipv6Addr::UNSPECIFIED), |_, _| Ok(()))
            .await
    }

    async fn find(
        &self,
        account: &Account,
        client: IpAddr,
        check: Check,
    ) -> Result<Arc<Identity>, Refusal> {
        let counts = |found: &CachedIdentity| {
            let age = self.age.load(Ordering::Relaxed);
            (found.uid, found.age) == (account.uid, age) && found.files == files()
        };
        let (account, age) = (account.clone(), Arc::clone(&self.age));
        let key = (account.name.clone(), client);
        let look_up = move || CachedIdentity {
            uid: account.uid,
            asked: Instant::now(),
            age: age.load(Ordering::Relaxed),
            files: files(),
            // Look the account up first: PAM reports a missing account as closed.
            answer: account.identity().and_then(|identity| {
                check(&account.name, client)?;
                Ok(Arc::new(identity))
            }),
        };
        self.known.find(&key, counts, look_up).await?.answer
    }

    /// Like [`Identities::of`], for each of these addresses, two at a time: most hosts have one or two.
    pub async fn of_each(
        &self,
        account: &Account,
        clients: &[IpAddr],
    ) -> Vec<(IpAddr, Result<Arc<Identity>, Refusal>)> {
        let mut answers = Vec::new();
        for pair in clients.chunks(2) {
            match *pair {
                [first, second] => {
                    let both = tokio::join!(self.of(account, first), self.of(account, second));
                    answers.extend([(first, both.0), (second, both.1)]);
                }
                [only] => answers.push((only, self.of(account, only).await)),
                _ => {}
            }
        }
        answers
    }

    /// Drops all answers.
    pub fn forget(&self) {
        self.age.fetch_add(1, Ordering::Relaxed);
    }
}

impl CachedIdentity {
    fn is_recent(&self) -> bool {
        let believed = match self.answer {
            Ok(_) => BELIEVED,
            Err(_) => REFUSED,
        };
        self.asked.elapsed() < believed
    }
}

/// A number that identifies the state of the files that determine the answers.
pub fn stamp() -> u64 {
    let mut hasher = DefaultHasher::new();
    files().hash(&mut hasher);
    hasher.finish()
}

fn files() -> Files {
    FILES.map(|path| {
        let found = std::fs::metadata(path).ok()?;
        Some([
            found.dev().cast_signed(),
            found.ino().cast_signed(),
            found.size().cast_signed(),
            found.mtime(),
            found.mtime_nsec(),
            found.ctime(),
            found.ctime_nsec(),
        ])
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn identities() -> Identities {
        Identities::new(|name, client| match (name.as_ref(), client) {
            ("bin", _) | (_, FAR) => Err(Refusal::AccountClosed),
            _ => Ok(()),
        })
    }

    /// Accounts are served at `HERE` and `THERE`, and not at `FAR`.
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn daemon(uid: u32) -> Account {
        Account {
            name: "daemon".parse().unwrap(),
            uid,
        }
    }

    /// A group that the account has only in the cached answer.
    const MARK: u32 = 0x7fff_fff0;

    async fn mark(identities: &Identities, asked: Instant) {
        let known = identities.known.answer(&(daemon(0).name, HERE));
        let mut known = known.lock().await;
        let found = known.as_mut().unwrap();
        found.asked = asked;
        let mut identity = found.answer.as_deref().unwrap().clone();
        identity.groups.push(MARK);
        found.answer = Ok(Arc::new(identity));
    }

    async fn is_marked(identities: &Identities, account: &Account) -> bool {
        let found = identities.of(account, HERE).await.unwrap();
        found.groups.contains(&MARK)
    }

    #[tokio::test]
    async fn what_was_found_counts_for_a_while_and_no_longer() {
        let identities = identities();
        let daemon = daemon(1);
        assert!(!is_marked(&identities, &daemon).await);
        mark(&identities, Instant::now()).await;
        assert!(is_marked(&identities, &daemon).await);
        identities.forget();
        assert!(!is_marked(&identities, &daemon).await);
        mark(&identities, Instant::now().checked_sub(BELIEVED).unwrap()).await;
        assert!(!is_marked(&identities, &daemon).await);
        mark(&identities, Instant::now()).await;
        // The file has changed since the answer.
        let known = identities.known.answer(&(daemon.name.clone(), HERE));
        known.lock().await.as_mut().unwrap().files[0] = None;
        assert!(!is_marked(&identities, &daemon).await);
    }

    #[tokio::test]
    async fn what_was_found_of_one_account_is_not_anothers_of_that_name() {
        let identities = identities();
        identities.of(&daemon(1), HERE).await.unwrap();
        let other = identities.of(&daemon(2), HERE).await;
        assert_eq!(other.unwrap_err(), Refusal::NoLocalAccount);
        identities.of(&daemon(1), HERE).await.unwrap();
    }

    #[tokio::test]
    async fn a_closed_account_is_refused_and_others_are_found() {
        let identities = identities();
        let bin = Account {
            name: "bin".parse().unwrap(),
            uid: 2,
        };
        let refused = identities.of(&bin, HERE).await;
        assert_eq!(refused.unwrap_err(), Refusal::AccountClosed);
        identities.of(&daemon(1), HERE).await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_for_one_address_is_not_anothers() {
        let identities = identities();
        let daemon = daemon(1);
        mark_after_asking(&identities, &daemon).await;
        assert!(is_marked(&identities, &daemon).await);
        let answers = identities.of_each(&daemon, &[HERE, THERE, FAR]).await;
        let groups = |place: usize| answers[place].1.as_ref().map(|found| &found.groups);
        assert!(groups(0).unwrap().contains(&MARK));
        assert!(!groups(1).unwrap().contains(&MARK));
        assert_eq!(groups(2).unwrap_err(), &Refusal::AccountClosed);
    }

    async fn mark_after_asking(identities: &Identities, account: &Account) {
        identities.of(account, HERE).await.unwrap();
        mark(identities, Instant::now()).await;
    }
}
